"""The console's forms that run boxes: one verb as a job, or preprocess, compile and train as a pipeline."""

import hashlib
import json
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request
from pydantic import ValidationError
from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from rdukit.errors import NotFound, RdukitError
from rdukit.settings import resolve
from rdukit.units import format_bytes
from rdukit_platform.api import job_calls
from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import platform_of
from rdukit_platform.catalog.model import BoxDescription, Boxes, BoxVerb, Selector, VerbSlot
from rdukit_platform.catalog.own import KIND as BOX
from rdukit_platform.catalog.own import box_of, get_own
from rdukit_platform.console.access import Editor, Visitor
from rdukit_platform.console.page import PageRoute, page
from rdukit_platform.console.run_form import (
    Field,
    Option,
    VerbForm,
    given_parameters,
    read_choice,
    read_inputs,
    read_labels,
    read_parameters,
    read_time,
    submit_command,
    view_choice,
    view_verb,
)
from rdukit_platform.console.views import age_words
from rdukit_platform.db.models import ArtifactRow, JobRow
from rdukit_platform.jobs import service
from rdukit_platform.jobs.choices import JobChoice
from rdukit_platform.jobs.fields import CHOICES
from rdukit_platform.jobs.fit import with_tiles
from rdukit_platform.jobs.schemas import JobRequest, PipelineRequest
from rdukit_platform.settings import JOB_MAX_ATTEMPTS, JOB_MAX_PRIORITY
from rdukit_platform.tenants.scopes import JOBS_WRITE, allows
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/console", include_in_schema=False, route_class=PageRoute)

#: Artifacts that a list offers, newest first.
MAX_OFFERED: Final = 100
UPLOADED: Final = "uploaded"
FROM_BOX: Final = "from this box"
FROM_OTHERS: Final = "from other boxes"
#: Fields that a form may have.
MAX_FIELDS: Final = 500
#: Verbs that the form of a pipeline starts with; the others wait to be ticked.
PIPELINE: Final = ("preprocess", "compile", "train")
#: Fields that say how a job is queued.
QUEUE: Final = frozenset({"name", "run_limit", "labels", *(choice.name for choice in CHOICES)})
#: Fields of a job that the steps of a pipeline do not share.
OWN: Final = frozenset({"tiles", "members", "profile"})
#: The button that only looks.
CHECK: Final = "check"


async def _read_form(request: Request) -> dict[str, str]:
    form = await request.form(max_fields=MAX_FIELDS, max_files=0)
    return {key: value for key, value in form.items() if isinstance(value, str)}


Given = Annotated[dict[str, str], Depends(_read_form)]


@router.get("/jobs/{job_id}/again")
def again(request: Request, job_id: str, caller: Visitor) -> Response:
    """Lead to the form of a job like this one."""
    with platform_of(request).database.read() as session:
        row = service.get_job(session, caller.tenant_id, job_id)
        path = f"/console/catalog/{Selector(row.box, row.box_version)}/run/{row.verb}?job={row.id}"
    return RedirectResponse(path, 303)


@router.get("/catalog/{name}/run/{verb}")
def form(request: Request, name: str, verb: str, caller: Visitor, job: str | None = None) -> Response:
    """Show the form of a verb, filled with its defaults or with a job's values."""
    platform = platform_of(request)
    box = find_box(platform, caller, name)
    one = find_verb(box, verb)
    given = given_at_first(platform, caller, box, one, job)
    return _form_page(request, caller, box, one, given, {}, source=job or "")


@router.post("/catalog/{name}/run/{verb}")
def run(request: Request, name: str, verb: str, caller: Editor, given: Given) -> Response:
    """Submit the job of a form; if a value is wrong, the form returns with errors and expected values at its fields."""
    platform = platform_of(request)
    box = find_box(platform, caller, name)
    one = find_verb(box, verb)
    parameters, errors = read_parameters(one, given)
    inputs, missing = read_inputs(one, given)
    queue, wrong = read_queue(given)
    errors |= missing | wrong
    if not errors:
        body = {"box": str(Selector(box.name, box.version)), "verb": one.name, "parameters": parameters,
                "inputs": inputs, **queue}  # fmt: skip
        try:
            asked = JobRequest.model_validate({**body, "idempotency_key": form_key(given, body)})
            if given.get("act") == CHECK:
                with platform.database.read() as session:
                    _check_job(session, platform, caller, box, asked)
            else:
                return RedirectResponse(f"/console/jobs/{job_calls.submit_job(platform, caller, asked).id}", 303)
        except (RdukitError, ValidationError) as error:
            errors = place_error(error, [""])
    status = 200 if given.get("act") == CHECK and not errors else 422
    return _form_page(request, caller, box, one, given, errors, source=given.get("source", ""), status=status)


@router.get("/catalog/{name}/pipeline")
def pipeline_form(request: Request, name: str, caller: Visitor) -> Response:
    """Show the form that runs a box's verbs as one pipeline, with the parameters of its recipe if it has one."""
    box = find_box(platform_of(request), caller, name)
    recipe = recipe_of(box)
    given = {"name": f"{box.name} by its recipe" if recipe else f"{box.name} end to end"}
    for verb in box.verbs:
        given |= given_parameters(verb, recipe.get(verb.name, {}), f"{verb.name}.")
        if verb.name in PIPELINE:
            given[f"{verb.name}.on"] = "true"
    given |= {key: value for key, value in _chain(box).items() if key not in given}
    return _pipeline_page(request, caller, box, given, {})


@router.post("/catalog/{name}/pipeline")
def run_pipeline(request: Request, name: str, caller: Editor, given: Given) -> Response:
    """Submit the pipeline of a form, or show the errors."""
    platform = platform_of(request)
    box = find_box(platform, caller, name)
    steps, errors = _read_steps(box, given)
    queue, wrong = read_queue(given)
    errors |= wrong
    title = str(queue.pop("name", None) or f"{box.name} end to end")
    queue = {key: value for key, value in queue.items() if key not in OWN}
    if not steps:
        errors[""] = "no step is selected; select one or more"
    if not errors:
        body = {
            "name": title,
            "steps": [{**step, **queue, "box": str(Selector(box.name, box.version))} for step in steps],
        }
        try:
            asked = PipelineRequest.model_validate({**body, "idempotency_key": form_key(given, body)})
            return RedirectResponse(f"/console/pipelines/{job_calls.submit_pipeline(platform, caller, asked).id}", 303)
        except (RdukitError, ValidationError) as error:
            errors = place_error(error, [f"{step['name']}." for step in steps])
    return _pipeline_page(request, caller, box, given, errors, status=422)


def recipe_of(box: BoxDescription) -> Mapping[str, Mapping[str, object]]:
    """Return the parameters of each verb that a box's recipe ``train`` names; empty without one (pure)."""
    recipes = box.raw.get("recipes")
    recipe = recipes.get("train") if isinstance(recipes, Mapping) else None
    if not isinstance(recipe, Mapping):
        return {}
    return {str(verb): named for verb, named in recipe.items() if isinstance(named, Mapping)}


def _form_page(
    request: Request,
    caller: Caller,
    box: BoxDescription,
    verb: BoxVerb,
    given: Mapping[str, str],
    errors: Mapping[str, str],
    *,
    source: str,
    status: int = 200,
) -> Response:
    platform = platform_of(request)
    with platform.database.read() as session:
        options = offer_artifacts(session, caller.tenant_id, box, verb, platform.clock.now())
    parameters, _ = read_parameters(verb, given)
    inputs, _ = read_inputs(verb, given)
    queue, _ = read_queue(given)
    shown = {slot.name: inputs.get(slot.name, "ARTIFACT") for slot in verb.inputs
             if slot.is_required or slot.name in inputs}  # fmt: skip
    return page(
        request, "run.html", status, section="Catalog", box=box, selector=str(Selector(box.name, box.version)),
        verb=verb.name, form=view_verb(verb, given, errors, options),
        queue=view_queue(given, errors, () if verb.name in service.PROFILED_VERBS else ("profile",)),
        general=errors.get("", ""), count=len(errors), source=source, key=given.get("key") or secrets.token_hex(8),
        command=submit_command(str(Selector(box.name, box.version)), verb.name, parameters, shown, queue),
        makers=find_makers(box, verb, options), is_checked=status == 200 and given.get("act") == CHECK,
        can_write=allows(caller.scopes, JOBS_WRITE),
    )  # fmt: skip


def _pipeline_page(
    request: Request,
    caller: Caller,
    box: BoxDescription,
    given: Mapping[str, str],
    errors: Mapping[str, str],
    status: int = 200,
) -> Response:
    platform = platform_of(request)
    now = platform.clock.now()
    forms: list[tuple[VerbForm, bool]] = []
    with platform.database.read() as session:
        for number, verb in enumerate(box.verbs):
            options = offer_artifacts(session, caller.tenant_id, box, verb, now)
            for slot in verb.inputs:
                steps = [Option(f"@{earlier.name}.{slot.name}", f"what {earlier.name} makes", "steps before")
                         for earlier in box.verbs[:number]
                         if slot.name in {output.name for output in earlier.outputs}]  # fmt: skip
                options[slot.name] = [*steps, *options[slot.name]]
            form = view_verb(verb, given, errors, options, f"{verb.name}.")
            forms.append((form, given.get(f"{verb.name}.on") == "true"))
    return page(
        request, "run_pipeline.html", status, section="Catalog", box=box, forms=forms,
        selector=str(Selector(box.name, box.version)), queue=view_queue(given, errors, OWN),
        general=errors.get("", ""), count=len(errors), key=given.get("key") or secrets.token_hex(8),
        has_recipe=bool(recipe_of(box)), can_write=allows(caller.scopes, JOBS_WRITE),
    )  # fmt: skip


def find_box(platform: Platform, caller: Caller, name: str) -> BoxDescription:
    """Return the box of that name and version: rdukit's or the tenant's own."""
    shipped = platform.catalog.boxes()
    if name in shipped.boxes:
        return shipped.boxes[name]
    with platform.database.read() as session:
        return box_of(get_own(session, shipped, caller.tenant_id, name))


def find_verb(box: BoxDescription, name: str) -> BoxVerb:
    """Return a box's verb. Raises ``NotFound``: it lacks the verb."""
    for verb in box.verbs:
        if verb.name == name:
            return verb
    raise NotFound(f"box {box.name!r} has no verb {name!r}; expected {', '.join(verb.name for verb in box.verbs)}")


def _check_job(session: Session, platform: Platform, caller: Caller, box: BoxDescription, asked: JobRequest) -> None:
    """Refuse a job as submitting would, except for quotas; nothing is recorded."""
    asked = with_tiles(platform.store, session, caller.tenant_id, asked)
    kinds = {}
    for slot, artifact in asked.inputs.items():
        row = session.get(ArtifactRow, artifact)
        if row is None or row.tenant_id != caller.tenant_id or row.deleted_at is not None:
            raise NotFound(f"there is no artifact {artifact!r}")
        kinds[slot] = "folder" if row.is_folder else "file"
    service.check_request(Boxes({asked.box: box}), asked, kinds)


def given_by_job(row: JobRow, verb: BoxVerb) -> dict[str, str]:
    """Return the texts of a form that would submit a job like this one (pure)."""
    given = given_parameters(verb, row.parameters)
    given |= {f"input.{slot}": value for slot, value in row.inputs.items() if not value.startswith("@")}
    if row.name != f"{Selector(row.box, row.box_version)} {row.verb}":
        given["name"] = row.name
    for choice in job_choices():
        texts = choice.write(getattr(row, choice.name))
        if texts:
            given[choice.name] = "true" if choice.kind == "bool" else "\n".join(texts)
    if row.run_limit_s is not None:
        given["run_limit"] = f"{row.run_limit_s:.15g}"
    return given | {"labels": "\n".join(f"{key}={value}" for key, value in row.labels.items())}


def job_choices() -> list[JobChoice]:
    """Return the plain fields of a job with the operator's limit and default."""
    own: dict[str, dict[str, Any]] = {
        "priority": {"highest": resolve(JOB_MAX_PRIORITY)},
        "max_attempts": {"default": resolve(JOB_MAX_ATTEMPTS)},
    }
    return [replace(choice, **own.get(choice.name, {})) for choice in CHOICES]


def read_queue(given: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Read how a job is queued: the given keys of a request, and errors by field."""
    queue: dict[str, Any] = {}
    errors = {}
    readers: dict[str, Callable[[str], object]] = {
        "name": lambda text: text.strip() or None,
        **{choice.name: partial(read_choice, choice) for choice in job_choices()},
        "run_limit": read_time,
        "labels": lambda text: read_labels(text) or None,
    }
    for field, read in readers.items():
        try:
            value = read(given.get(field, "")[:20_000])
        except ValueError as wrong:
            errors[field] = str(wrong)
            continue
        if value is not None:
            queue["run_limit_s" if field == "run_limit" else field] = value
    return queue, errors


def view_queue(
    given: Mapping[str, str], errors: Mapping[str, str], hidden: Collection[str] = ("profile",)
) -> tuple[Field, ...]:
    """Return the fields about a job's queueing, with the given values and their errors, without the hidden ones."""
    by_hand = [
        Field("name", "name", "text", "", "Name in the list of jobs.", "up to 128 characters",
              attributes={"maxlength": "128"}),
        Field("run_limit", "run limit", "text", "",
              "Run limit of an attempt; jobs with short limits may start earlier.", "such as 90s, 15m, 2h"),
        Field("labels", "labels", "lines", "", "Labels for finding the job.", "KEY=VALUE on a line each"),
    ]  # fmt: skip
    name, *others = (
        replace(one, value=given.get(one.key, ""), error=errors.get(one.key, ""), is_changed=bool(given.get(one.key)))
        for one in by_hand
    )
    plain = (
        view_choice(choice, given.get(choice.name, ""), errors.get(choice.name, ""))
        for choice in job_choices()
        if choice.name not in hidden
    )
    return name, *plain, *others


def _read_steps(box: BoxDescription, given: Mapping[str, str]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    steps, errors = [], dict[str, str]()
    names: set[str] = set()
    for verb in box.verbs:
        if given.get(f"{verb.name}.on") != "true":
            continue
        prefix = f"{verb.name}."
        parameters, wrong = read_parameters(verb, given, prefix)
        inputs, missing = read_inputs(verb, given, prefix)
        errors |= wrong | missing
        for slot, value in inputs.items():
            step = value[1:].partition(".")[0]
            if value.startswith("@") and step not in names:
                errors[f"{prefix}input.{slot}"] = f"step {step} is not selected; select it, or choose an artifact"
        steps.append({"name": verb.name, "verb": verb.name, "parameters": parameters, "inputs": inputs})
        names.add(verb.name)
    return steps, errors


def _chain(box: BoxDescription) -> dict[str, str]:
    """Return for each input that an earlier verb of the box makes the reference to it (pure)."""
    made: dict[str, str] = {}
    chain = {}
    for verb in box.verbs:
        for slot in verb.inputs:
            if slot.name in made and slot.is_required:
                chain[f"{verb.name}.input.{slot.name}"] = made[slot.name]
        made |= {output.name: f"@{verb.name}.{output.name}" for output in verb.outputs if output.name not in made}
    return chain


def form_key(given: Mapping[str, str], body: Mapping[str, object]) -> str | None:
    """Return the idempotency key of a form's content: a repeated form is one job, a changed form another."""
    if not given.get("key"):
        return None
    said = json.dumps([given["key"][:64], body], sort_keys=True).encode()
    return f"form-{hashlib.sha256(said).hexdigest()[:32]}"


def place_error(error: RdukitError | ValidationError, prefixes: Sequence[str]) -> dict[str, str]:
    """Return an error by field; the empty text is the key of errors without a field (pure)."""
    if isinstance(error, ValidationError):
        return dict(place_one(one["loc"], one["msg"], prefixes) for one in error.errors())
    parameter = error.detail.get("parameter")
    if isinstance(parameter, str) and len(prefixes) == 1:
        return {f"{prefixes[0]}set.{parameter}": error.message}
    named = error.detail.get("field")
    return {named if isinstance(named, str) and named in QUEUE else "": error.message}


def place_one(place: Sequence[int | str], message: str, prefixes: Sequence[str]) -> tuple[str, str]:
    """Return the field that a part of a request's body stands for, and the message (pure)."""
    prefix = ""
    if place[0] == "steps" and len(place) > 2:
        prefix, place = prefixes[int(place[1])], place[2:]
    key = str({"run_limit_s": "run_limit"}.get(str(place[0]), place[0]))
    if key in {"parameters", "inputs"} and len(place) > 1:
        return f"{prefix}{'set' if key == 'parameters' else 'input'}.{place[1]}", message
    return (key, message) if key in QUEUE else ("", message)


def find_makers(box: BoxDescription, verb: BoxVerb, options: Mapping[str, Sequence[Option]]) -> dict[str, str]:
    """Return, for each required input without an artifact, the verb of the box that makes it (pure)."""
    makers = {output.name: one.name for one in reversed(box.verbs) for output in one.outputs}
    return {
        slot.name: makers[slot.name]
        for slot in verb.inputs
        if slot.is_required
        and makers.get(slot.name, verb.name) != verb.name
        and all(option.group == UPLOADED for option in options.get(slot.name, ()))
    }


def offer_artifacts(
    session: Session, tenant_id: str, box: BoxDescription, verb: BoxVerb, now: float
) -> dict[str, list[Option]]:
    """Return the artifacts that fit each slot: of jobs of this box, of other jobs, and uploaded ones."""
    offered = {}
    for slot in verb.inputs:
        options = []
        for artifact, job_box in _fitting(session, tenant_id, slot, MAX_OFFERED):
            size = format_bytes(artifact.bytes)
            label = f"{artifact.name[:60]} · {size} · {age_words(artifact.created_at, now)} · {artifact.id}"
            group = UPLOADED if job_box is None else FROM_BOX if job_box == box.name else FROM_OTHERS
            options.append(Option(artifact.id, label, group))
        order = (FROM_BOX, FROM_OTHERS, UPLOADED)
        offered[slot.name] = sorted(options, key=lambda option: order.index(option.group))
    return offered


def given_at_first(
    platform: Platform, caller: Caller, box: BoxDescription, verb: BoxVerb, job: str | None
) -> dict[str, str]:  # fmt: skip
    """Return the first content of a form: a job's values, or the verb's defaults and the newest inputs that fit."""
    with platform.database.read() as session:
        if job is not None:
            return given_by_job(service.get_job(session, caller.tenant_id, job), verb)
        inputs = newest_inputs(session, caller.tenant_id, box, verb)
    return given_parameters(verb, {}) | {f"input.{slot}": value for slot, value in inputs.items()}


def newest_inputs(session: Session, tenant_id: str, box: BoxDescription, verb: BoxVerb) -> dict[str, str]:
    """Return for each required slot the newest artifact that a job of the box made for such a slot."""
    found = {}
    for slot in verb.inputs:
        if slot.is_required:
            query = _fitting_query(tenant_id, slot).where(JobRow.box == box.name).limit(1)
            for artifact, _ in session.execute(query):
                found[slot.name] = artifact.id
    return found


def _fitting(session: Session, tenant_id: str, slot: VerbSlot, limit: int) -> Iterable[tuple[ArtifactRow, str | None]]:
    return [(artifact, job_box) for artifact, job_box in session.execute(_fitting_query(tenant_id, slot).limit(limit))]


def _fitting_query(tenant_id: str, slot: VerbSlot) -> Any:
    fits = [ArtifactRow.tenant_id == tenant_id, ArtifactRow.deleted_at.is_(None)]
    if slot.kind in {"file", "folder"}:
        fits.append(ArtifactRow.is_folder.is_(slot.kind == "folder"))
    is_upload = and_(ArtifactRow.job_id.is_(None), ArtifactRow.kind != BOX)
    is_alike = or_(
        ArtifactRow.kind == slot.name,
        ArtifactRow.slot == slot.name,
        is_upload,
    )
    query = select(ArtifactRow, JobRow.box).outerjoin(JobRow, JobRow.id == ArtifactRow.job_id)
    return query.where(*fits, is_alike).order_by(ArtifactRow.created_at.desc(), ArtifactRow.id.desc())
