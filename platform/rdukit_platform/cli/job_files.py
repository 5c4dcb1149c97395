"""Files of jobs and their submission: YAML documents with a request's keys after ``apiVersion`` and ``kind``."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rdukit.errors import InvalidArgument, NotFound, RdukitError, suggest
from rdukit.strict_json import find_infinite
from rdukit_platform.cli import connect, show

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from rdukit_platform.client.http import ApiClient

#: Exit status of a command that waited for a job which did not succeed.
NOT_SUCCEEDED: Final = 4
API_VERSION: Final = "rdukit.dev/v1"
KIND: Final = "Job"
#: Largest number of documents in a file; for more, use a sweep or a program.
MAX_DOCUMENTS: Final = 1000
#: Largest number of faults in one message.
MAX_FAULTS: Final = 10


def read_jobs(text: str, name: str) -> list[dict[str, object]]:
    """Read a file's documents as bodies of ``POST /v1/jobs`` (pure). ``name`` is that of the file, for messages.

    Raises:
        InvalidArgument: the file is not YAML, or a document is not a job; the message names the document and the key,
            with a suggestion.
    """
    documents = [found for found in _read_plainly(text, name, MAX_DOCUMENTS) if found is not None]
    if not 1 <= len(documents) <= MAX_DOCUMENTS:
        raise InvalidArgument(f"{name} has {len(documents)} documents; expected 1 to {MAX_DOCUMENTS}")
    return [
        _read_job(found, name if len(documents) == 1 else f"{name}, document {number}")
        for number, found in enumerate(documents, 1)
    ]


def _read_job(document: object, where: str) -> dict[str, object]:
    from pydantic import ValidationError

    from rdukit_platform.jobs.schemas import JobRequest

    if not isinstance(document, dict):
        raise InvalidArgument(f"{where} is not a mapping; expected apiVersion, kind, and the keys of a job")
    for key, legal in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(key) != legal:
            found = f"is {str(document[key])[:64]!r}" if key in document else "is missing"
            raise InvalidArgument(f"{where}: {key} {found}; expected {legal}")
    body: dict[str, object] = {key: value for key, value in document.items() if key not in {"apiVersion", "kind"}}
    try:
        JobRequest.model_validate(body)
    except ValidationError as refused:
        raise InvalidArgument(f"{where}: {'; '.join(map(_describe, refused.errors()))}") from refused
    return body


def _describe(problem: "ErrorDetails") -> str:
    from rdukit_platform.jobs.schemas import JobRequest, RetryPolicy

    path, key = ".".join(map(str, problem["loc"])), str(problem["loc"][-1]) if problem["loc"] else ""
    if problem["type"] != "extra_forbidden":
        return f"{path}: {problem['msg']}" if path else str(problem["msg"])
    schema = RetryPolicy if len(problem["loc"]) > 1 else JobRequest
    meant = suggest(key, schema.model_fields) or f" Legal: {', '.join(schema.model_fields)}"
    return f"{path}: unknown key.{meant}"


def file_schema() -> dict[str, object]:
    """Return the JSON schema of a document."""
    from rdukit_platform.jobs.schemas import JobRequest

    schema = JobRequest.model_json_schema()
    own = {"apiVersion": {"const": API_VERSION}, "kind": {"const": KIND}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": KIND,
        "description": "Print a document for: rdukit job submit -f FILE.",
        "properties": {**own, **schema["properties"]},
        "required": [*own, *schema["required"]],
    }


def submit_file(file: Path, *, is_dry: bool, wait: bool, as_json: bool) -> None:
    """Submit a file's jobs, all or none; with ``is_dry`` only check them.

    Raises:
        NotFound: there is no such file.
        InvalidArgument: a document is not a job, or not legal.
    """
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except FileNotFoundError as cause:
        raise NotFound(f"there is no file {file}; expected a YAML file of jobs, or - for stdin") from cause
    except UnicodeDecodeError as cause:
        raise InvalidArgument(f"{file} is not text: {cause}") from cause
    bodies = read_jobs(text, str(file))
    if is_dry:
        check_bodies(bodies, as_json=as_json)
    else:
        submit_bodies("/v1/jobs", bodies, wait=wait, as_json=as_json)


def check_bodies(bodies: Sequence[Mapping[str, object]], *, as_json: bool) -> None:
    """Have the platform check jobs without recording them, and print the results.

    Raises:
        RdukitError: a job is refused; the message names it.
    """
    found = []
    with connect() as client:
        for number, body in enumerate(bodies, 1):
            try:
                found.append(client.post("/v1/jobs/check", body))
            except RdukitError as refused:
                if len(bodies) == 1:
                    raise
                raise _with_document(refused, number) from refused
    if as_json:
        show.print_json(found)
        return
    for one in found:
        known = f", which is {one['job']} already" if one["job"] else ""
        click.echo(f"{one['name']}: {one['verb']} of box {one['box']}, {one['tiles']} tiles, would be submitted{known}")


def read_request(path: Path, what: str, keys: str) -> dict[str, Any]:
    """Read a file of one request. Messages use ``what`` (its kind) and ``keys`` (those expected).

    Raises:
        NotFound: there is no such file.
        InvalidArgument: it is not a YAML mapping, or has a value that is ambiguous in YAML or not in JSON.
    """
    try:
        text = path.read_text()
    except FileNotFoundError as cause:
        raise NotFound(f"there is no {what} file {path}; expected a YAML file with the keys {keys}") from cause
    except UnicodeDecodeError as cause:
        raise InvalidArgument(f"{what} file {path} is not text: {cause}") from cause
    (body,) = _read_plainly(text, f"{what} file {path}", 1)
    if not isinstance(body, dict):
        raise InvalidArgument(f"{what} file {path} is not a mapping; expected the keys {keys}")
    return body


def _read_plainly(text: str, name: str, most: int) -> list[object]:
    """Return a file's documents; their values exist in JSON, too."""
    from rdukit.strict_yaml import Diagnostic, read_documents  # imported here: commands without files need no YAML

    found = read_documents(text, most=most, merges=True)
    faults = [fault for document in found for fault in document.faults]
    for document in found:
        strange = find_infinite(document.value)
        if strange is not None:
            path, value = strange
            message = f"{value} is not valid in a request; expected a finite number"
            faults.append(Diagnostic(document.mark_of(path), path, message))
    if faults:
        told = "; ".join(f"line {fault.mark.line}, {fault.key}: {fault.message}" for fault in faults[:MAX_FAULTS])
        more = f"; and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
        raise InvalidArgument(f"{name}: {told}{more}")
    return [document.value for document in found]


def submit_body(path: str, body: Mapping[str, object], *, wait: bool, as_json: bool) -> None:
    """Submit one body to ``path``, as ``submit_bodies`` does."""
    submit_bodies(path, [body], wait=wait, as_json=as_json)


def submit_bodies(path: str, bodies: Sequence[Mapping[str, object]], *, wait: bool, as_json: bool) -> None:
    """Submit bodies to ``path`` and print the jobs' ids; with ``wait``, follow them and exit with 4 if one fails.

    Several bodies must be jobs, which are recorded together or not at all.
    """
    with connect() as client:
        submitted = [client.submit(path, bodies[0])] if len(bodies) == 1 else _submit_together(client, bodies)
        jobs = [job for one in submitted for job in one.get("jobs", [one])]
        if not as_json:
            click.echo("\n".join(one["id"] for one in jobs))
        if wait:
            known = submitted[0] if len(submitted) == 1 else submitted
            with watched([one["id"] for one in jobs], "job", "cancel", lambda: known, as_json=as_json):
                jobs = [_wait(client, one["id"], is_quiet=as_json) for one in jobs]
            submitted = [client.get(f"{path}/{one['id']}") for one in submitted] if "jobs" in submitted[0] else jobs
        if as_json:
            show.print_json(submitted[0] if len(submitted) == 1 else submitted)
        if wait and any(one["state"] != "succeeded" for one in jobs):
            sys.exit(NOT_SUCCEEDED)


def _submit_together(client: "ApiClient", bodies: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    try:
        ids = client.submit("/v1/jobs/batch", {"jobs": list(bodies)})["ids"]
    except RdukitError as refused:
        if not isinstance(number := refused.detail.get("job"), int):
            raise
        raise _with_document(refused, number + 1) from refused
    return [client.get(f"/v1/jobs/{job_id}") for job_id in ids]


def _with_document(refused: RdukitError, number: int) -> RdukitError:
    return type(refused)(f"document {number}: {refused.message}", **refused.detail)


@contextmanager
def watched(
    names: Sequence[str], command: str, end: str, known: Callable[[], object], *, as_json: bool
) -> Iterator[None]:
    """Print at the start and on Ctrl-C that the work continues without this command.

    Args:
        command: such as sweep: ``rdukit sweep show NAME`` shows it, ``rdukit sweep END NAME`` ends it.
        known: last description, with its id, which Ctrl-C prints with ``as_json``.
    """
    try:
        for name in names:
            click.echo(f"waiting for {name}; Ctrl-C stops waiting; to end it: rdukit {command} {end} {name}", err=True)
        yield
    except KeyboardInterrupt:
        if as_json:
            show.print_json(known())
        click.echo("", err=True)  # after the terminal's ^C
        for name in names:
            look, stop = f"rdukit {command} show {name}", f"rdukit {command} {end} {name}"
            click.echo(f"{name} continues; to show it: {look}; to end it: {stop}", err=True)
        raise


def _wait(client: "ApiClient", job_id: str, is_quiet: bool) -> dict[str, Any]:
    for event in client.follow(job_id):
        if not is_quiet:
            click.echo(f"{job_id}  {show.describe_event(event)}", err=True)
    return client.get(f"/v1/jobs/{job_id}")
