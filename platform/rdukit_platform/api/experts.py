"""Routes of experts, and their API views."""

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request, status
from pydantic import BaseModel, Field, JsonValue

from rdukit_platform.api.audit_requests import entry_of
from rdukit_platform.api.dependencies import BoxesReader, BoxesWriter, Cursor, Limit, StrictJsonRoute, platform_of
from rdukit_platform.audit.service import Act, record
from rdukit_platform.catalog.experts import (
    MAX_LICENCE,
    deprecate_expert,
    get_expert,
    list_experts,
    selector_of,
    versions_of_expert,
)
from rdukit_platform.catalog.model import Selector
from rdukit_platform.catalog.own import get_own
from rdukit_platform.db.models import ExpertRow
from rdukit_platform.jobs.experts import promote_job
from rdukit_platform.jobs.schemas import RequestBody

router = APIRouter(prefix="/v1/experts", tags=["experts"], route_class=StrictJsonRoute)

#: Longest reason of a deprecation.
MAX_REASON: Final = 500

Asked = Annotated[str, Path(description="NAME, or NAME:VERSION.")]


class PromoteRequest(RequestBody):
    """Body of ``POST /v1/experts``."""

    job: Annotated[str, Field(min_length=1, max_length=32, description="A train or evaluate job that has succeeded.")]
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
    description: Annotated[str, Field(max_length=4000)] = ""
    licence: Annotated[str, Field(max_length=MAX_LICENCE)] | None = Field(
        default=None, description="Default: that of the box."
    )


class DeprecateRequest(RequestBody):
    """Body of ``POST /v1/experts/{expert}/deprecate``."""

    reason: Annotated[str, Field(min_length=1, max_length=MAX_REASON)]


class Expert(BaseModel):
    """A version of an expert: a base box with a checkpoint that one of its jobs trained."""

    #: Exact version: ``name:version``.
    expert: str
    name: str
    version: int
    #: Box, as a job names it.
    box: str
    #: Artifacts; ``pef`` is the one of the training, if the job had one.
    checkpoint: str
    pef: str | None
    description: str
    #: Licence; empty: unknown.
    licence: str
    #: Figures of the job's result.
    metrics: dict[str, JsonValue]
    job: str
    created_at: float
    deprecated_at: float | None
    deprecated_reason: str | None
    #: All versions of this name; present only if a single expert is requested.
    versions: list[int] | None = None


class ExpertPage(BaseModel):
    """Versions of experts, newest first; ``next_cursor`` asks for the rest."""

    experts: list[Expert]
    next_cursor: str | None


class Deprecated(BaseModel):
    """The versions that were marked."""

    experts: list[str]


@router.get("")
def list_(
    request: Request,
    caller: BoxesReader,
    search: Annotated[str, Query(max_length=200, description="Words of names, descriptions and boxes.")] = "",
    box: Annotated[str | None, Query(max_length=128, description="NAME, or NAME:VERSION for your own box.")] = None,
    deprecated: Annotated[bool, Query(description="Include deprecated ones.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> ExpertPage:
    """Return the versions of the tenant's experts, newest first."""
    platform = platform_of(request)
    boxes = platform.catalog.boxes()
    with platform.database.read() as session:
        rows, following = list_experts(
            session, caller.tenant_id, search, box, limit, cursor, with_deprecated=deprecated
        )
        if box and not rows and box not in boxes.boxes:
            get_own(session, boxes, caller.tenant_id, box)
    return ExpertPage(experts=[show_expert(row) for row in rows], next_cursor=following)


@router.post("", status_code=status.HTTP_201_CREATED)
def promote(request: Request, caller: BoxesWriter, body: PromoteRequest) -> Expert:
    """Make a training's checkpoint the next version of an expert."""
    platform = platform_of(request)
    boxes = platform.catalog.boxes()
    with platform.database.write() as session:
        now = platform.clock.now()
        row = promote_job(session, boxes, caller.tenant_id, body.job, body.name, now, body.description, body.licence)
        shown = show_expert(row, versions_of_expert(session, caller.tenant_id, row.name))
        record(session, entry_of(request, caller, Act.PROMOTE_EXPERT, shown.expert, detail=f"of job {shown.job}"))
    return shown


@router.get("/{expert}")
def show(request: Request, expert: Asked, caller: BoxesReader) -> Expert:
    """Show one version; ``NAME`` is the newest that is not deprecated."""
    with platform_of(request).database.read() as session:
        row = get_expert(session, caller.tenant_id, expert)
        return show_expert(row, versions_of_expert(session, caller.tenant_id, row.name))


@router.post("/{expert}/deprecate")
def deprecate(request: Request, expert: Asked, caller: BoxesWriter, body: DeprecateRequest) -> Deprecated:
    """Deprecate a version (``NAME:VERSION``), or all versions of an expert (``NAME``)."""
    platform = platform_of(request)
    with platform.database.read() as session:  # checked before the write lock is taken
        get_expert(session, caller.tenant_id, expert)
    with platform.database.write() as session:
        rows = deprecate_expert(session, caller.tenant_id, expert, body.reason, platform.clock.now())
        marked = [str(selector_of(row)) for row in rows]
        record(session, entry_of(request, caller, Act.DEPRECATE_EXPERT, " ".join(marked), detail=body.reason))
        return Deprecated(experts=marked)


def show_expert(row: ExpertRow, versions: list[int] | None = None) -> Expert:
    """Return the API's view of an expert."""
    same = ("name", "version", "description", "licence", "metrics", "created_at", "deprecated_at", "deprecated_reason")
    return Expert.model_validate(
        {
            **{name: getattr(row, name) for name in same},
            "expert": str(selector_of(row)),
            "box": str(Selector(row.box, row.box_version)),
            "checkpoint": row.checkpoint_id,
            "pef": row.pef_id,
            "job": row.job_id,
            "versions": versions,
        }
    )
