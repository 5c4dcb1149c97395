"""``rdukit pipeline graph``: a pipeline file's steps as a table or a picture; and its JSON schema."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION
from rdukit.files.atomic import write_atomic
from rdukit_platform.cli import connect, show


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--svg", type=click.Path(path_type=Path), default=None, metavar="OUT", help="File for a drawing of the graph."
)
@click.option("--boxes", is_flag=True, help="Ask the platform which verbs boxes exclude from caching.")
@JSON_OPTION
@TOKEN_OPTION
def graph(file: Path, svg: Path | None, boxes: bool, as_json: bool) -> None:
    """Show the order of the steps in a pipeline's YAML FILE, and which of them may reuse earlier outputs.

    Without --boxes it needs no platform and does not check the boxes.

    Example: rdukit pipeline graph digits.yaml --svg digits.svg

    Example: rdukit pipeline graph digits.yaml
    """
    from rdukit_platform.jobs.steps_picture import describe_steps, draw_steps, steps_of_file

    request = read_request(file)
    steps = steps_of_file(request, read_uncached(request) if boxes else ())
    if svg is not None:
        write_atomic(svg, draw_steps(steps, request.name, is_file=True).encode())
    rows = describe_steps(steps)
    if as_json:
        show.print_json(
            {
                "name": request.name,
                "steps": [dict(zip(("step", "what", "after", "cache"), r, strict=True)) for r in rows],
            }
        )
    elif svg is None:
        show.print_table(("STEP", "WHAT", "AFTER", "CACHE"), rows)
    else:
        click.echo(f"{svg}: {len(rows)} steps, {len(request.steps)} jobs")


def read_uncached(request: Any) -> set[tuple[str, str]]:
    """Return the boxes and verbs of a request that their box excludes from caching.

    Raises:
        NotFound: the platform has no such box.
    """
    with connect() as client:
        names = dict.fromkeys(step.box for step in request.steps)
        boxes = {name: client.get(f"/v1/catalog/{quote(name, safe='')}") for name in names}
    return {(name, verb["name"]) for name, box in boxes.items() for verb in box["verbs"] if verb.get("uncached")}


def read_request(file: Path) -> Any:
    """Return the request in a pipeline file, with a step for each job.

    Raises:
        NotFound: there is no such file.
        InvalidArgument: the file is not a pipeline; the message says what is expected.
    """
    from pydantic import ValidationError

    from rdukit_platform.cli.job import read_pipeline
    from rdukit_platform.gateway.malformed import find_malformed, refusal_of
    from rdukit_platform.jobs.pipelines import with_steps_expanded
    from rdukit_platform.jobs.schemas import PipelineRequest

    body = read_pipeline(file, None)
    try:
        return with_steps_expanded(PipelineRequest.model_validate(body))
    except ValidationError as refused:
        schema = PipelineRequest.model_json_schema()
        found = [{**each, "loc": ("body", *each["loc"])} for each in refused.errors()]
        raise refusal_of(find_malformed(found, body, {"body": schema}, schema.get("$defs", {}))) from refused


def pipeline_schema() -> dict[str, object]:
    """Return the JSON schema of a pipeline file."""
    from rdukit_platform.jobs.schemas import PipelineRequest

    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **PipelineRequest.model_json_schema(),
        "title": "Pipeline",
        "description": "Print a file for: rdukit pipeline submit FILE.",
    }
