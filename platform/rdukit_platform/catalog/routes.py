"""Routes of the catalog, and of the boxes that tenants install."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, File, Request, Response, UploadFile, status
from pydantic import BaseModel, JsonValue, TypeAdapter
from sqlalchemy.orm import Session

from rdukit.errors import InvalidArgument
from rdukit.units import format_bytes
from rdukit_platform.artifacts.store import BLOCK, check_paths, check_relative
from rdukit_platform.catalog.model import Boxes
from rdukit_platform.catalog.own import (
    check_may_own,
    get_own,
    install_box,
    list_own,
    newest_own,
    uninstall_box,
    versions_of,
)
from rdukit_platform.db.models import BoxRow
from rdukit_platform.gateway.dependencies import Reader, Writer, platform_of

router = APIRouter(prefix="/v1", tags=["catalog"])

#: Most bytes and files of a box's folder: as much as an image of a box may bring along.
MAX_BYTES = 4 << 20
MAX_FILES = 500
MAX_PATH = 200


class BoxList(BaseModel):
    """ModelBoxes with their verbs and parameters; the tenant's own have the key ``installed``."""

    boxes: list[dict[str, JsonValue]]


class InstalledBox(BaseModel):
    """A version of a box that the tenant installed."""

    #: What a job gives as its box: ``name:version``.
    box: str
    name: str
    version: int
    title: str
    #: SHA-256 of the folder's manifest, or ``sha256:…`` of the image.
    digest: str
    artifact: str | None
    image: str | None
    installed_at: float
    #: Whether this request made it; otherwise the newest version had this content already.
    is_new: bool = False


class InstalledPage(BaseModel):
    """Installed versions, newest first; ``next_cursor`` asks for the rest."""

    boxes: list[InstalledBox]
    next_cursor: str | None


class Uninstalled(BaseModel):
    """The versions that were taken away, as jobs named them."""

    boxes: list[str]


@router.get("/catalog")
def list_(request: Request, caller: Reader) -> BoxList:
    """All boxes: those that come with rdukit, and the newest version of each that the tenant installed."""
    platform = platform_of(request)
    boxes = platform.catalog.boxes()
    with platform.database.read() as session:
        own = own_descriptions(session, boxes, caller.tenant_id)
    shipped = {name: dict(box.raw) for name, box in boxes.boxes.items()}
    return BoxList.model_validate({"boxes": [described for _, described in sorted((own | shipped).items())]})


@router.get("/catalog/{box}")
def show(request: Request, box: str, caller: Reader) -> dict[str, JsonValue]:
    """One box: its description as the box gives it. ``NAME:VERSION`` is a version of one's own."""
    platform = platform_of(request)
    boxes = platform.catalog.boxes()
    if box in boxes.boxes:
        return _as_json(dict(boxes.boxes[box].raw))
    with platform.database.read() as session:
        return _as_json(_describe(session, get_own(session, boxes, caller.tenant_id, box)))


@router.get("/boxes")
def list_installed(request: Request, caller: Reader, limit: int = 50, cursor: str | None = None) -> InstalledPage:
    """The versions of boxes that the tenant installed, newest first."""
    with platform_of(request).database.read() as session:
        rows, following = list_own(session, caller.tenant_id, limit, cursor)
    return InstalledPage(boxes=[show_installed(row) for row in rows], next_cursor=following)


@router.post("/boxes", status_code=status.HTTP_201_CREATED, responses={200: {"model": InstalledBox}})
def install(
    request: Request,
    response: Response,
    caller: Writer,
    files: Annotated[list[UploadFile], File(description="The files of the box's folder, named by their paths in it.")],
) -> InstalledBox:
    """Install a box (multipart form): 201 and a new version, or 200 and the newest, which has this content already."""
    platform = platform_of(request)
    boxes = platform.catalog.boxes()
    with platform.database.read() as session:
        check_may_own(session, caller.tenant_id)
    with tempfile.TemporaryDirectory(prefix="rdukit-box-") as temporary:
        folder = Path(temporary)
        write_files(files, folder)
        description = platform.catalog.describe_folder(folder)
        content = platform.store.add_path(folder)
    with platform.database.write() as session:
        installed = install_box(session, boxes, caller.tenant_id, description, content, platform.clock.now())
        if not installed.is_new:
            response.status_code = status.HTTP_200_OK
        return show_installed(installed.row, is_new=installed.is_new)


@router.delete("/boxes/{box}")
def uninstall(request: Request, box: str, caller: Writer) -> Uninstalled:
    """Take a version away (``NAME:VERSION``), or all of a box (``NAME``). Refused while jobs take it."""
    platform = platform_of(request)
    boxes = platform.catalog.boxes()
    with platform.database.write() as session:
        rows = uninstall_box(session, boxes, caller.tenant_id, box, platform.clock.now())
        return Uninstalled(boxes=[show_installed(row).box for row in rows])


def own_descriptions(session: Session, boxes: Boxes, tenant_id: str) -> dict[str, dict[str, object]]:
    """The newest version of each of the tenant's boxes by its name, as the catalog shows them."""
    rows = [row for row in newest_own(session, tenant_id) if row.name not in boxes.boxes]
    return {row.name: _describe(session, row) for row in rows}


def show_installed(row: BoxRow, *, is_new: bool = False) -> InstalledBox:
    """A row as the API shows it."""
    return InstalledBox(
        box=f"{row.name}:{row.version}",
        name=row.name,
        version=row.version,
        title=str(row.description.get("title") or row.name),
        digest=row.digest,
        artifact=row.artifact_id,
        image=row.image,
        installed_at=row.created_at,
        is_new=is_new,
    )


def write_files(files: Sequence[UploadFile], folder: Path) -> None:
    """Write a box's files as they came.

    Raises:
        InvalidArgument: a path leaves the folder, or they are too many or too large.
    """
    paths = [check_relative(file.filename or "") for file in files]
    for path in paths:
        if len(path.encode()) > MAX_PATH:
            raise InvalidArgument(f"{path[:40]!r}… has {len(path)} characters; legal: paths of up to {MAX_PATH}")
    check_paths(paths)
    sizes = [file.size or 0 for file in files]
    if len(files) > MAX_FILES or sum(sizes) > MAX_BYTES:
        largest = max(range(len(files)), key=sizes.__getitem__)
        raise InvalidArgument(
            f"the folder has {len(files)} files of {format_bytes(sum(sizes))}; a box has up to {MAX_FILES} of "
            f"{format_bytes(MAX_BYTES)}. The largest is {paths[largest]} ({format_bytes(sizes[largest])}): give data, "
            "PEFs and checkpoints to jobs as inputs (rdukit artifact add), and move them out of the folder"
        )
    for path, file in zip(paths, files, strict=True):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as out:
            while block := file.file.read(BLOCK):
                out.write(block)


def _describe(session: Session, row: BoxRow) -> dict[str, object]:
    installed = show_installed(row).model_dump(exclude={"is_new", "name", "title"})
    return {**row.description, "installed": {**installed, "versions": versions_of(session, row.tenant_id, row.name)}}


def _as_json(description: dict[str, object]) -> dict[str, JsonValue]:
    return TypeAdapter(dict[str, JsonValue]).validate_python(description)
