"""``rdukit job clone``: commands that take up jobs again."""

from collections.abc import Sequence

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION, parse_name_values, parse_value


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A parameter otherwise; repeat for more.")
@click.option("--default", "defaults", multiple=True, metavar="NAME", help="A parameter at the box's default again.")
@click.option("--input", "inputs", multiple=True, metavar="SLOT=ARTIFACT", help="An input otherwise; repeat for more.")
@click.option("--name", default=None, help="Name of the new job (default: that of JOB).")
@click.option("--key", default=None, help="Idempotency key: the same key gives the same job.")
@click.option("--wait", is_flag=True, help="Wait for the end; exit status 4 if it does not succeed.")
@JSON_OPTION
@TOKEN_OPTION
def clone(
    job_id: str,
    settings: Sequence[str],
    defaults: Sequence[str],
    inputs: Sequence[str],
    name: str | None,
    key: str | None,
    wait: bool,
    as_json: bool,
) -> None:
    """Submit a job like another one, of the same version of its box, with changes.

    Example: rdukit job clone job-7k2m9x41abcd --set lr=0.1 --wait
    """
    from rdukit_platform.cli.job import submit_body

    body: dict[str, object] = {
        "parameters": {k: parse_value(v) for k, v in parse_name_values("--set", settings).items()},
        "defaults": list(defaults),
        "inputs": parse_name_values("--input", inputs),
    }
    given = {k: v for k, v in (("name", name), ("idempotency_key", key)) if v is not None}
    submit_body(f"/v1/jobs/{job_id}/clone", body | given, wait=wait, as_json=as_json)
