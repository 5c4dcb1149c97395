"""``rdukit artifact``: list, show, fetch, add, pin and delete artifacts, and collect content."""

import os
from pathlib import Path

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION, ExtensibleGroup
from rdukit.cli.tables import escaped
from rdukit.errors import ContentDamaged, InvalidArgument, Unavailable
from rdukit.files.atomic import write_atomic
from rdukit.units import format_bytes
from rdukit_platform.cli import connect, show
from rdukit_platform.cli.complete import ARTIFACTS


@click.group(cls=ExtensibleGroup)
def artifact() -> None:
    """List, show, fetch, add, pin and delete artifacts of the platform.

    Example: rdukit artifact list --kind checkpoint

    Example: rdukit artifact list --job job-7k2m9x41abcd --limit 10
    """


@artifact.command("list")
@click.option("--kind", default=None, help="Show only this kind: pef, dataset, checkpoint, …, or a kind of your own.")
@click.option("--job", default=None, help="Show only artifacts of this job.")
@show.page_options
@JSON_OPTION
@TOKEN_OPTION
def list_(kind: str | None, job: str | None, limit: int, cursor: str | None, as_json: bool) -> None:
    """List artifacts, newest first.

    Example: rdukit artifact list --kind pef

    Example: rdukit artifact list --job job-7k2m9x41abcd --limit 10
    """
    with connect() as client:
        page = client.get("/v1/artifacts", kind=kind, job=job, limit=limit, cursor=cursor)
        use = client.get("/v1/artifacts/usage")
    if as_json:
        show.print_json(page)
        return
    rows = [
        (a["id"], a["kind"], "folder" if a["is_folder"] else "file", format_bytes(a["bytes"]), a["job_id"] or "-",
         show.ago(a["created_at"]), a["digest"][:12], f"{a['name']}{' (pinned)' * (a['pinned_at'] is not None)}")
        for a in page["artifacts"]
    ]  # fmt: skip
    show.print_table(("ID", "KIND", "FORM", "SIZE", "JOB", "AGE", "SHA256", "NAME"), rows)
    click.echo(show.describe_use(use), err=True)
    if page["next_cursor"]:
        click.echo(f"more with: --cursor {page['next_cursor']}", err=True)


@artifact.command("show")
@click.argument("artifact_id", shell_complete=ARTIFACTS)
@JSON_OPTION
@TOKEN_OPTION
def show_(artifact_id: str, as_json: bool) -> None:
    """Show one artifact, its files and its lineage.

    Example: rdukit artifact show art-7k2m9x41abcd

    Example: rdukit artifact show art-7k2m9x41abcd --json
    """
    with connect() as client:
        found = client.get(f"/v1/artifacts/{artifact_id}")
        lineage = client.get(f"/v1/artifacts/{artifact_id}/lineage")
    if as_json:
        show.print_json({**found, "lineage": lineage})
        return
    click.echo(f"{found['id']}  {found['name']}\nkind    {found['kind']}\nsize    {format_bytes(found['bytes'])}")
    click.echo(f"sha256  {found['digest']}\nmade by {found['job_id'] or 'upload'} at {show.clock(found['created_at'])}")
    for file in found["files"] or []:
        click.echo(f"file    {escaped(file['path'])}  {format_bytes(file['bytes'])}{' program' * file['executable']}")
    for folder in found["empty_folders"] or []:
        click.echo(f"folder  {escaped(folder)}  empty")
    for link in lineage["links"]:
        how = "was made from" if link["job_id"] else "names"
        by = f" by {link['job_id']}" if link["job_id"] else ""
        click.echo(f"lineage {link['child']} {how} {link['parent']} ({link['slot']}){by}")


@artifact.command()
@click.argument("artifact_id", shell_complete=ARTIFACTS)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="New file or folder to write.")
@TOKEN_OPTION
def get(artifact_id: str, output: Path) -> None:
    """Fetch an artifact's content. The same command continues an interrupted download.

    Example: rdukit artifact get art-7k2m9x41abcd -o checkpoint/

    Example: rdukit artifact get art-7k2m9x41abcd --output model.pef
    """
    from rdukit_platform.client.artifacts import fetch_artifact

    with connect() as client:
        found = fetch_artifact(client, artifact_id, output)
    click.echo(f"{output}: {format_bytes(found['bytes'])}", err=True)


@artifact.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--kind", required=True, help="Kind: pef, dataset, checkpoint, ……")
@click.option("--name", default=None, help="Name of the artifact (default: the path's last part).")
@JSON_OPTION
@TOKEN_OPTION
def add(path: Path, kind: str, name: str | None, as_json: bool) -> None:
    """Add a file or a folder as an artifact. Prints its id.

    A folder keeps its empty folders and its files' execute permission; links are refused. The same command continues an
    interrupted upload of a folder or a large file.

    Example: rdukit artifact add digits/ --kind data

    Example: rdukit artifact add talks.jsonl --kind data --name talks
    """
    from rdukit_platform.client.artifacts import add_artifact

    with connect() as client:
        try:
            added = add_artifact(client, path, kind, name)
        except (KeyboardInterrupt, Unavailable):
            click.echo("the platform keeps received pieces for a day; the same command continues the upload", err=True)
            raise
    if path.is_file() and os.access(path, os.X_OK):
        click.echo(f"{path} is executable, but a single file loses that; add its folder to keep it", err=True)
    show.print_answer(added, as_json, added["id"])


@artifact.command()
@click.argument("artifact_id", shell_complete=ARTIFACTS)
@JSON_OPTION
@TOKEN_OPTION
def delete(artifact_id: str, as_json: bool) -> None:
    """Delete an artifact. Refused while it is pinned, or a job that has not ended, an expert or a box needs it.

    Example: rdukit artifact delete art-7k2m9x41abcd

    Example: rdukit artifact delete art-7k2m9x41abcd --context lab
    """
    with connect() as client:
        gone = client.delete(f"/v1/artifacts/{artifact_id}")
    kept = f"; {', '.join(gone['same_content'])} still has the same content" if gone["same_content"] else ""
    show.print_answer(gone, as_json, f"deleted {gone['id']} ({format_bytes(gone['bytes'])}){kept}")


@artifact.command()
@click.argument("artifact_id", shell_complete=ARTIFACTS)
@JSON_OPTION
@TOKEN_OPTION
def pin(artifact_id: str, as_json: bool) -> None:
    """Pin an artifact, so that it neither expires nor can be deleted.

    Example: rdukit artifact pin art-7k2m9x41abcd

    Example: rdukit artifact pin art-7k2m9x41abcd --context lab
    """
    with connect() as client:
        kept = client.put(f"/v1/artifacts/{artifact_id}/pin")
    show.print_answer(kept, as_json, f"pinned {kept['id']}")


@artifact.command()
@click.argument("artifact_id", shell_complete=ARTIFACTS)
@JSON_OPTION
@TOKEN_OPTION
def unpin(artifact_id: str, as_json: bool) -> None:
    """Remove the pin of an artifact.

    Example: rdukit artifact unpin art-7k2m9x41abcd

    Example: rdukit artifact unpin art-7k2m9x41abcd --context lab
    """
    with connect() as client:
        freed = client.delete(f"/v1/artifacts/{artifact_id}/pin")
    show.print_answer(freed, as_json, f"unpinned {freed['id']}")


@artifact.command()
@click.argument("artifact_id", required=False, shell_complete=ARTIFACTS)
@click.option("--all", "is_all", is_flag=True, help="Verify all of the tenant's artifacts.")
@JSON_OPTION
@TOKEN_OPTION
def verify(artifact_id: str | None, is_all: bool, as_json: bool) -> None:
    """Verify an artifact: read its content in the store and compare the digests. Fails if any differs.

    Example: rdukit artifact verify --all

    Example: rdukit artifact verify art-7k2m9x41abcd
    """
    if (artifact_id is None) is not is_all:
        raise InvalidArgument("name an artifact, or give --all")
    with connect() as client:
        ids = [artifact_id] if artifact_id else [a["id"] for a in client.pages("/v1/artifacts", "artifacts", limit=200)]
        found = [client.post(f"/v1/artifacts/{each}/verify") for each in ids]
    wrong = [(each["id"], problem) for each in found for problem in each["problems"]]
    if as_json:
        show.print_json(found)
        if wrong:
            raise SystemExit(ContentDamaged.exit_status)
        return
    for each, problem in wrong:
        click.echo(f"{each}  {escaped(problem['path'] or '-')}  {problem['problem']}")
    files, size = sum(each["files"] for each in found), sum(each["bytes"] for each in found)
    click.echo(f"{len(found)} artifacts: {files} files with {format_bytes(size)} are intact, {len(wrong)} are not")
    if wrong:
        damaged = ", ".join(dict.fromkeys(each for each, _ in wrong))
        raise ContentDamaged(f"content of {damaged} is missing or damaged; add it again with: rdukit artifact add")


@artifact.command()
@click.argument("artifact_id", shell_complete=ARTIFACTS)
@click.option(
    "-o", "--output", default=None, type=click.Path(path_type=Path), help="SVG file to write; its name ends in .svg."
)
@JSON_OPTION
@TOKEN_OPTION
def lineage(artifact_id: str, output: Path | None, as_json: bool) -> None:
    """Show the origins of an artifact and the artifacts made from it, as lines or as a picture with links.

    Example: rdukit artifact lineage art-7k2m9x41abcd -o lineage.svg

    Example: rdukit artifact lineage art-7k2m9x41abcd --json
    """
    from rdukit_platform.artifacts.picture import draw_lineage, graph_of

    if output is not None and output.suffix.lower() != ".svg":
        raise InvalidArgument(f"--output is {str(output)!r}; expected a name that ends in .svg")
    with connect() as client:
        found = client.get(f"/v1/artifacts/{artifact_id}/lineage")
        url = client.url
    nodes, edges = graph_of(found["artifacts"], found["links"], found["jobs"])
    if output is not None:
        write_atomic(output, draw_lineage(nodes, edges, artifact_id, url, is_file=True).encode())
        click.echo(f"{output}: {len(nodes)} artifacts and jobs", err=True)
    if as_json:
        show.print_json(found)
    elif output is None:
        names = {node.id: f"{node.label} (deleted)" if node.is_gone else node.label for node in nodes}
        rows = [(edge.source, names[edge.source], edge.label, edge.target, names[edge.target]) for edge in edges]
        show.print_table(("FROM", "", "SLOT", "TO", ""), rows)


@artifact.command()
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@JSON_OPTION
@TOKEN_OPTION
def gc(dry_run: bool, as_json: bool) -> None:
    """Remove content that no artifact refers to. Needs the scope admin.

    The scheduler does this every hour. Content younger than artifacts.grace_s stays.

    Example: rdukit artifact gc --dry-run

    Example: rdukit artifact gc
    """
    with connect() as client:
        found = client.post(f"/v1/artifacts/gc?dry_run={str(dry_run).lower()}")
    if as_json:
        show.print_json(found)
        return
    did = "would remove" if dry_run else "removed"
    click.echo(
        f"{did} {found['removed']} blobs with {format_bytes(found['removed_bytes'])}; "
        f"kept {found['kept']} used by artifacts, and {found['young']} too young to judge"
    )
