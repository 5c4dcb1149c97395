"""``rdukit pipeline graph``: a pipeline file's steps as a table or a picture; and its JSON schema."""

from pathlib import Path
from typing import Any

import click

from rdukit.cli.commands import JSON_OPTION
from rdukit.files.atomic import write_atomic


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--svg", type=click.Path(path_type=Path), default=None, metavar="OUT", help="Draw it into this file.")
@JSON_OPTION
def graph(file: Path, svg: Path | None, as_json: bool) -> None:
    """Show what the steps of a pipeline's YAML FILE come after; asks no platform, so that boxes are not checked.

    Example: rdukit pipeline graph digits.yaml --svg digits.svg
    """
    from rdukit_platform.cli import show
    from rdukit_platform.jobs.steps_picture import describe_steps, draw_steps, steps_of_file

    request = read_request(file)
    steps = steps_of_file(request.steps)
    if svg is not None:
        write_atomic(svg, draw_steps(steps, request.name, is_file=True).encode())
    rows = describe_steps(steps)
    if as_json:
        show.print_json(
            {"name": request.name, "steps": [dict(zip(("step", "what", "after"), r, strict=True)) for r in rows]}
        )
    elif svg is None:
        show.print_table(("STEP", "WHAT", "AFTER"), rows)
    else:
        click.echo(f"{svg}: {len(rows)} steps, {len(request.steps)} jobs")


def read_request(file: Path) -> Any:
    """Return the request in a pipeline file, with a step for each job.

    Raises:
        NotFound: there is no such file.
        InvalidArgument: it is no pipeline; the message says what would be.
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
        "description": "A file for: rdukit pipeline submit FILE.",
    }
