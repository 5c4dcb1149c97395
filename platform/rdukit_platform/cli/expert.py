"""``rdukit expert``: manage a tenant's experts, each a box with a trained checkpoint."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION, ExtensibleGroup
from rdukit_platform.cli import connect, show
from rdukit_platform.cli.complete import EXPERTS, JOBS


@click.group(cls=ExtensibleGroup)
def expert() -> None:
    """Promote trained checkpoints to experts; list, compare and deprecate them.

    Example: rdukit expert list --search digits

    Example: rdukit expert list --deprecated
    """


@expert.command()
@click.argument("job", metavar="JOB", shell_complete=JOBS)
@click.option("--name", required=True, help="Name of the expert; an existing name gets its next version.")
@click.option("--description", default="", help="Description of its purpose.")
@click.option("--licence", default=None, help="Licence of the checkpoint (default: that of the box).")
@JSON_OPTION
@TOKEN_OPTION
def promote(job: str, name: str, description: str, licence: str | None, as_json: bool) -> None:
    """Promote the checkpoint of a successful train job to the next version of an expert.

    For an evaluate job, the evaluated checkpoint is promoted, with the evaluation's figures.

    Example: rdukit expert promote job-7k2m9x41abcd --name digits --description "Reads handwritten digits."

    Example: rdukit expert promote job-7k2m9x41abcd --name digits --licence MIT
    """
    body = {"job": job, "name": name, "description": description, "licence": licence}
    with connect() as client:
        made = client.post("/v1/experts", body)
    show.print_answer(
        made, as_json, f"{made['expert']} is the checkpoint of {made['job']}; see: rdukit expert show {name}"
    )


@expert.command("list")
@click.option("--search", default=None, help="Words that have to occur in name, description or box.")
@click.option("--box", default=None, help="Show only experts of this box, NAME or NAME:VERSION.")
@click.option("--deprecated", is_flag=True, help="Deprecated ones, too.")
@show.page_options
@JSON_OPTION
@TOKEN_OPTION
def list_(search: str | None, box: str | None, deprecated: bool, limit: int, cursor: str | None, as_json: bool) -> None:
    """List experts, a line per version, newest first.

    Example: rdukit expert list --box logreg --search digits

    Example: rdukit expert list --deprecated
    """
    from rdukit_platform.catalog.figures import figure_text, headline

    with connect() as client:
        page = client.get(
            "/v1/experts", search=search, box=box, deprecated="true" if deprecated else None, limit=limit, cursor=cursor
        )
    rows = []
    for one in page["experts"]:
        figures = ", ".join(f"{name} {figure_text(name, one['metrics'][name])}" for name in headline(one["metrics"]))
        mark = f"deprecated: {one['deprecated_reason']}" if one["deprecated_at"] is not None else one["description"]
        rows.append(
            (one["expert"], one["box"], figures or "-", one["licence"] or "-", show.ago(one["created_at"]), mark)
        )
    show.print_page(page, as_json, ("EXPERT", "BOX", "METRICS", "LICENCE", "AGE", "DESCRIPTION"), rows)


@expert.command("show")
@click.argument("name", metavar="NAME[:VERSION]", shell_complete=EXPERTS)
@JSON_OPTION
@TOKEN_OPTION
def show_(name: str, as_json: bool) -> None:
    """Show one version of an expert: its base box, figures, licence and sources.

    The default is the newest version that is not deprecated.

    Example: rdukit expert show digits:1

    Example: rdukit expert show digits --json
    """
    with connect() as client:
        found = client.get(_path(name))
    if as_json:
        show.print_json(found)
        return
    lines = [
        ("expert", found["expert"]),
        ("description", found["description"]),
        ("deprecated", _deprecation(found)),
        ("box", found["box"]),
        ("checkpoint", found["checkpoint"]),
        ("pef", found["pef"]),
        ("job", found["job"]),
        ("licence", found["licence"]),
        ("promoted", show.clock(found["created_at"])),
        ("versions", ", ".join(map(str, found["versions"]))),
        *((f"metric {name}", _number(value)) for name, value in found["metrics"].items()),
    ]
    show.print_fields(lines)


@expert.command()
@click.argument("a", metavar="A", shell_complete=EXPERTS)
@click.argument("b", metavar="B", shell_complete=EXPERTS)
@JSON_OPTION
@TOKEN_OPTION
def compare(a: str, b: str, as_json: bool) -> None:
    """Compare two experts, each NAME or NAME:VERSION: their sources and figures.

    CHANGE is B minus A.

    Example: rdukit expert compare digits:1 digits:2

    Example: rdukit expert compare digits:1 digits:3 --json
    """
    from rdukit_platform.catalog.figures import compare_figures

    with connect() as client:
        one, other = client.get(_path(a)), client.get(_path(b))
    found = compare_figures(one["metrics"], other["metrics"])
    if as_json:
        figures = {each.name: {"a": each.a, "b": each.b, "change": each.change} for each in found}
        show.print_json({"experts": [one, other], "metrics": figures})
        return
    rows = [
        (key, one[key] or "-", other[key] or "-", "" if one[key] == other[key] else "differs")
        for key in ("box", "pef", "checkpoint", "job", "licence")
    ]
    rows += [
        (each.name, _number(each.a), _number(each.b), _number(each.change, sign="+") if each.change else "")
        for each in found
    ]
    show.print_table(("", one["expert"], other["expert"], "CHANGE"), rows)


@expert.command()
@click.argument("name", metavar="NAME[:VERSION]", shell_complete=EXPERTS)
@click.option("--reason", required=True, help="Reason, and a replacement.")
@JSON_OPTION
@TOKEN_OPTION
def deprecate(name: str, reason: str, as_json: bool) -> None:
    """Deprecate a version of an expert, or all of them. The checkpoints stay.

    Example: rdukit expert deprecate digits:1 --reason "digits:2 reads sevens too"

    Example: rdukit expert deprecate digits --reason "the data was wrong"
    """
    with connect() as client:
        marked = client.post(f"{_path(name)}/deprecate", {"reason": reason})
    show.print_answer(marked, as_json, f"deprecated {', '.join(marked['experts'])}")


def _path(name: str) -> str:
    return f"/v1/experts/{quote(name, safe='')}"


def _deprecation(found: Mapping[str, Any]) -> str:
    return (
        "" if found["deprecated_at"] is None else f"{show.clock(found['deprecated_at'])}: {found['deprecated_reason']}"
    )


def _number(value: object, sign: str = "") -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:{sign}.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:{sign}.6g}"
    return str(value)
