"""The console's form that begins a sweep of a box's verb."""

import secrets
from collections.abc import Mapping
from typing import Any, Final

import yaml
from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import RedirectResponse, Response

from rdukit.errors import RdukitError, Unavailable
from rdukit_platform.api.dependencies import platform_of
from rdukit_platform.api.sweeps import check_sweep, submit_sweep
from rdukit_platform.catalog.model import BoxDescription, BoxVerb, Selector
from rdukit_platform.console.access import Editor, Visitor
from rdukit_platform.console.page import PageRoute, page
from rdukit_platform.console.run_form import read_inputs, read_parameters, view_verb
from rdukit_platform.console.run_form_pages import (
    CHECK,
    Given,
    find_box,
    find_makers,
    find_verb,
    form_key,
    given_at_first,
    offer_artifacts,
    read_queue,
    view_queue,
)
from rdukit_platform.console.sweep_form import place_sweep_error, read_search, read_space, view_search, view_space
from rdukit_platform.jobs import service
from rdukit_platform.sweeps.decide import count_trials
from rdukit_platform.sweeps.model import Algorithm, SweepRequest
from rdukit_platform.sweeps.suggest import check_optuna
from rdukit_platform.tenants.scopes import JOBS_WRITE, allows
from rdukit_platform.tenants.service import Caller

#: Verb that most sweeps are of.
TRAIN: Final = "train"

router = APIRouter(prefix="/console", include_in_schema=False, route_class=PageRoute)


@router.get("/sweeps/new")
def choose(request: Request, caller: Visitor, box: str = "") -> Response:
    """Redirect to the form of a box's training, or of its last verb if it has none."""
    if not box:
        return RedirectResponse("/console/catalog?kind=box", 303)
    found = find_box(platform_of(request), caller, box)
    verbs = [verb.name for verb in found.verbs]
    verb = TRAIN if TRAIN in verbs else verbs[-1]
    return RedirectResponse(f"/console/catalog/{Selector(found.name, found.version)}/sweep/{verb}", 303)


@router.get("/jobs/{job_id}/sweep")
def sweep_of_job(request: Request, job_id: str, caller: Visitor) -> Response:
    """Lead to the form of a sweep whose trials are like this job."""
    with platform_of(request).database.read() as session:
        row = service.get_job(session, caller.tenant_id, job_id)
        path = f"/console/catalog/{Selector(row.box, row.box_version)}/sweep/{row.verb}?job={row.id}"
    return RedirectResponse(path, 303)


@router.get("/catalog/{name}/sweep/{verb}")
def form(request: Request, name: str, verb: str, caller: Visitor, job: str | None = None) -> Response:
    """Show the form of a sweep, filled with the verb's defaults or with a job's values."""
    platform = platform_of(request)
    box = find_box(platform, caller, name)
    one = find_verb(box, verb)
    given = given_at_first(platform, caller, box, one, job)
    metrics = [metric.name for metric in one.metrics]
    given["algorithm"] = str(Algorithm.GRID)
    given["objective"] = "loss" if "loss" in metrics or not metrics else metrics[0]
    return _form_page(request, caller, box, one, given, {}, source=job or "")


@router.post("/catalog/{name}/sweep/{verb}")
def begin(request: Request, name: str, verb: str, caller: Editor, given: Given) -> Response:
    """Submit the sweep of a form; on errors the form is shown again with the legal values at each field."""
    platform = platform_of(request)
    box = find_box(platform, caller, name)
    one = find_verb(box, verb)
    body, errors = _read_body(box, one, given)
    trials = None
    if not errors:
        try:
            asked = SweepRequest.model_validate({**body, "idempotency_key": form_key(given, body)})
            if given.get("act") == CHECK:
                trials = count_trials(check_sweep(platform, caller, asked))
            else:
                return RedirectResponse(f"/console/sweeps/{submit_sweep(platform, caller, asked).id}", 303)
        except (RdukitError, ValidationError) as error:
            errors = place_sweep_error(error, list(body["space"]))
    source = given.get("source", "")
    return _form_page(request, caller, box, one, given, errors, source=source, trials=trials)


def _read_body(box: BoxDescription, verb: BoxVerb, given: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the body of the sweep's request, and errors by field (pure)."""
    space, errors = read_space(verb, given)
    fixed = {key: text for key, text in given.items() if not given.get(f"try.{key.removeprefix('set.')}", "").strip()}
    parameters, wrong = read_parameters(verb, fixed)
    inputs, missing = read_inputs(verb, given)
    queue, odd = read_queue(given)
    search, strange = read_search(given)
    errors |= wrong | missing | odd | strange
    if not space and not errors:
        errors[""] = "no parameter has values to try; give values for one or more"
    name = queue.pop("name", None)
    selector = str(Selector(box.name, box.version))
    body: dict[str, Any] = {} if name is None else {"name": name}
    tried = {key: value for key, value in parameters.items() if key not in space}
    job = {"box": selector, "verb": verb.name, "inputs": inputs, "parameters": tried, **queue}
    return {**body, "job": job, "space": space, **search}, errors


def _form_page(
    request: Request,
    caller: Caller,
    box: BoxDescription,
    verb: BoxVerb,
    given: Mapping[str, str],
    errors: Mapping[str, str],
    *,
    source: str,
    trials: int | None = None,
) -> Response:
    platform = platform_of(request)
    with platform.database.read() as session:
        options = offer_artifacts(session, caller.tenant_id, box, verb, platform.clock.now())
    body, _ = _read_body(box, verb, given)
    for slot in verb.inputs:
        if slot.is_required:
            body["job"]["inputs"].setdefault(slot.name, "ARTIFACT")
    form = view_verb(verb, given, errors, options)
    search, stop = view_search(verb, given, errors, _algorithms())
    return page(
        request, "sweep_form.html", 422 if errors else 200, section="Sweeps", box=box, verb=verb.name, form=form,
        selector=str(Selector(box.name, box.version)), tried=view_space(verb, given, errors), search=search, stop=stop,
        queue=view_queue(given, errors), general=errors.get("", ""), count=len(errors), source=source, trials=trials,
        key=given.get("key") or secrets.token_hex(8), makers=find_makers(box, verb, options),
        has_fixed=any(one.is_changed or one.error for one in form.parameters),
        file=yaml.safe_dump(body, sort_keys=False, allow_unicode=True), can_write=allows(caller.scopes, JOBS_WRITE),
    )  # fmt: skip


def _algorithms() -> list[Algorithm]:
    """Return the algorithms whose libraries are installed."""
    try:
        check_optuna()
    except Unavailable:
        return [one for one in Algorithm if one is not Algorithm.OPTUNA]
    return list(Algorithm)
