"""``snfadm``: show a node's inventory, errors and faults; clear, inject and repair.

All users may read; changes need root, the daemon's user, or its administration token. The vendor's options are ``-l``,
``-a``, ``-v`` and ``--csv``; the others are ours.

Source: runtime reference 4.3.
"""

import contextlib
from pathlib import Path
from typing import Any, Final

import click

from rdukit import __version__
from rdukit.cli import run_command
from rdukit.errors import InvalidArgument, NotFound, Unavailable
from rdukit.hardware import NODES
from rdukit.interfaces import SystemClock
from rdukit_node.cli.diag import diag
from rdukit_node.cli.fault_changes import CHANGES, change_lines, change_request, policy_request
from rdukit_node.cli.fault_views import (
    VIEWS,
    Row,
    View,
    choose_rows,
    find_severity,
    judge,
    maintenance_rows,
    nothing_text,
    running_rows,
    suggestion_blocks,
    view_blocks,
    view_csv,
    view_lines,
    with_advice,
    with_elapsed,
    with_node_prefix,
)
from rdukit_node.cli.output import (
    Reader,
    connect_admin,
    csv_option,
    is_terminal,
    json_line,
    json_option,
    json_text,
    node_options,
    parse_time,
    read_stored,
)
from rdukit_node.inventory import find_component

_TOOL: Final = "snfadm"
#: Rows per request; an answer is one line, and long lines are refused.
_PAGE: Final = 500
_FOLLOW_EVERY_S: Final = 0.5
_COULD_NOT_ASK: Final = 2
#: Exit status of ``--clear`` if the fault returns at once.
_RETURNED: Final = 1


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="snfadm")
@click.option("-l", "--list", "listing", type=click.Choice(tuple(VIEWS)), help="Listing to print.")
@click.option("-a", "--all-faults", is_flag=True, help="With faults: show cleared ones, too.")
@click.option("-v", "--verbose", is_flag=True, help="Show the long form, with recovery advice.")
@csv_option
@json_option
@click.option("-c", "--component", metavar="PREFIX", help="Show only this component and its parts.")
@click.option(
    "--since", metavar="TIME", help="Show only entries from this time on: 2024-06-11T02:14:55, or 2h for two hours ago."
)
@click.option("--until", metavar="TIME", help="Show only entries up to this time.")
@click.option("--job", metavar="ID", help="With errors, faults and applications: show only those of this job.")
@click.option("--follow", is_flag=True, help="With errors and faults: follow new entries until Ctrl-C.")
@click.option("--suggestions", is_flag=True, help="Print advice on the active faults.")
@click.option("--exit-code", is_flag=True, help="Exit with 0: healthy, 1: an active fault, 2: unknown.")
@click.option(
    "--severity",
    metavar="WORD",
    help="With --exit-code: lowest severity that counts (Minor, Major or Critical; default Minor). With --set-policy: "
    "the fault's severity.",
)
@click.option(
    "--clear",
    "clear_uuid",
    metavar="UUID",
    help="Clear a fault; the exit status is 1 if it returns because its cause remains.",
)
@click.option("--inject", "inject_class", metavar="CLASS", help="Inject an error of this class from the catalogue.")
@click.option("--count", type=click.IntRange(1, 1_000_000), help="Number of errors to --inject, or for --set-policy.")
@click.option("--seed", type=click.IntRange(0), help="With --inject and --scenario: random seed.")
@click.option(
    "--data", multiple=True, metavar="KEY=VALUE", help="With --inject: data KEY=VALUE of the error; repeatable."
)
@click.option("--scenario", type=click.Path(path_type=Path), help="Start a YAML file's schedule of errors.")
@click.option(
    "--set-policy",
    metavar="ETYPE",
    help="Change the policy of an error type: when errors become a fault, and the action.",
)
@click.option(
    "--window",
    type=click.IntRange(1),
    metavar="SECONDS",
    help="With --set-policy: time window in which errors are counted.",
)
@click.option("--action", metavar="WORD", help="With --set-policy: action of the node.")
@click.option("--fault-type", metavar="FTYPE", help="With --set-policy: the fault's type.")
@click.option("--replace", metavar="PATH", help="Replace parts there with intact ones that have new serial numbers.")
@click.option("--reset-counts", metavar="PATH", help="Reset the policies' error counts there; totals remain.")
@click.option("--repair", metavar="PATH", help="Remove conditions left at a component by injected errors.")
@click.option("--reset", metavar="PATH", help="Reset a tile or an RDU.")
@click.option("--cordon", metavar="PATH", help="Cordon the node, an XRDU, an RDU or a tile: no new allocations.")
@click.option("--uncordon", metavar="PATH", help="Remove the cordons and drains of PATH and everything below.")
@click.option("--drain", metavar="PATH", help="Cordon, and wait until all leases there have ended.")
@click.option(
    "--deadline",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="With --drain: time after which remaining leases are ended.",
)
@click.option("--release", "release_lease", metavar="LEASE", help="End any user's lease; its job is queued again.")
@click.option("--maintain", metavar="PATH", help="Plan a maintenance window: drain from --start until --end.")
@click.option(
    "--start", metavar="TIME", help="With --maintain: start as an ISO time, or 2h for two hours from now; default: now."
)
@click.option("--end", metavar="TIME", help="With --maintain: end of the window; default: until a command ends it.")
@click.option("--end-maintenance", metavar="WINDOW", help="End a maintenance window now, or cancel a planned one.")
@click.option("--reason", metavar="TEXT", help="With --cordon, --drain, --release and --maintain: the reason.")
@node_options
@click.pass_context
def snfadm(context: click.Context, /, listing: str | None, socket_file: Path | None, **options: Any) -> None:
    """Fault management of the node: inventory, errors, faults, policies, recovery.

    Without a daemon, listings come from the node's database, with its age on stderr. All users may read; changes need
    root, the daemon's user, or its token.

    Example: snfadm -l fault -v

    Example: snfadm --inject tile-hang -c /NODE/XRDU_0/RDU_0/TILE_0
    """
    if context.invoked_subcommand is not None:
        return
    changes = [name for name in CHANGES if options[CHANGES[name]] is not None]
    asked = changes + [f"--{name}" for name in ("suggestions",) if options[name]] + (["-l"] if listing else [])
    if len(asked) > 1:
        raise InvalidArgument(f"{' and '.join(asked)} cannot be combined; run them one after the other")
    if not asked and not options["exit_code"]:
        raise InvalidArgument(f"nothing to do; choose a listing with -l: {', '.join(VIEWS)}, or see snfadm --help")
    _check_options(options, listing, changes)
    if changes:
        answer = _change(changes[0], socket_file, options)
        click.echo(json_text(answer) if options["as_json"] else "\n".join(change_lines(changes[0], answer)))
        if answer.get("returned"):  # not really cleared: scripts must not continue
            context.exit(_RETURNED)
        return
    try:
        with Reader(socket_file, read_stored) as reader:
            status = _look(reader, listing, options)
            reader.say_age(_TOOL)
    except Unavailable as error:
        if not options["exit_code"]:
            raise
        if options["as_json"]:
            click.echo(json_text({"status": "unknown", "faults": [], "rdus": [], **error.body()}))
        click.echo(f"error [{error.code}]: {error.message}", err=True)
        status = _COULD_NOT_ASK
    context.exit(status)


snfadm.add_command(diag)


# -- looking ---------------------------------------------------------------------------------------------------------


def _look(reader: Reader, listing: str | None, options: dict[str, Any]) -> int:
    as_json, as_csv = options["as_json"], options["as_csv"]
    if options["component"]:
        check_component(reader, options["component"])
    if listing is not None:
        view = VIEWS[listing]
        rows = fetch_rows(reader, view, options)
        if view.op == "errors" and options["verbose"]:
            rows = with_advice(rows, fetch_rows(reader, VIEWS["policy"], options))
        if options["follow"]:
            with contextlib.suppress(KeyboardInterrupt):  # the way to end it
                _follow(reader, view, rows, options)
            return 0
        if as_json and not options["exit_code"]:
            click.echo(json_text({view.key: rows}))
        else:
            _print_rows(view, rows, options)
            if not rows and not as_csv and not as_json and is_terminal():
                click.echo(f"{_TOOL}: {nothing_text(listing, options['all_faults'])}", err=True)
    elif options["suggestions"]:
        faults = fetch_rows(reader, VIEWS["fault"], {**options, "all_faults": False})
        if as_json:
            names = ("fault_uuid", "severity", "fault_type", "comp_name", "action", "recovery_act", "suspects")
            click.echo(json_text({"suggestions": [{name: row.get(name) for name in names} for row in faults]}))
        elif as_csv:
            click.echo(view_csv(VIEWS["fault"], faults, is_verbose=True))
        else:
            _print_lines(suggestion_blocks(faults))
    if not options["exit_code"]:
        return 0
    return _verdict(reader, listing, options)


def check_component(reader: Reader, component: str) -> None:
    """Refuse an unknown component, as a misspelled one must not look healthy.

    Raises:
        InvalidArgument: the node has no such component; the message lists its components.
    """
    platform = reader.ask("hello").get("platform")
    if platform in NODES:  # a daemon of another version may know more platforms
        try:
            find_component(NODES[platform], component)
        except NotFound as error:
            raise InvalidArgument(error.message) from error


def fetch_rows(reader: Reader, view: View, options: dict[str, Any], after: str | None = None) -> list[Row]:
    """Fetch a listing's rows by the options, page by page."""
    component = with_node_prefix(options["component"]) if options["component"] else None
    since, until = _times(options)
    arguments: dict[str, object] = {"limit": view.limit}
    if view.is_paged:
        arguments = {"since": since, "until": until, "limit": _PAGE}
    if "component" in view.accepted:
        arguments["component"] = component
    if view.op == "applications":
        arguments["job"] = options.get("job")
    if view.op == "faults":
        arguments["cleared"] = True if options["all_faults"] else None
    rows: list[Row] = []
    while True:
        answer = reader.ask(view.op, **arguments, after=after) if view.is_paged else reader.ask(view.op, **arguments)
        if view.op == "maintenance":
            answer = {view.key: maintenance_rows(answer, int(SystemClock().now() * 1e9))}
        page = answer[view.key]
        rows += page
        if not view.is_paged or not answer.get("more") or not page:
            break
        after = str(page[-1][view.columns[0]])
    if view.op == "applications" and reader.age_s is None:
        rows = running_rows(reader.ask("status")["leases"]) + rows
    if view.op == "applications":
        rows = with_elapsed(rows, int(SystemClock().now() * 1e9))
    job = options.get("job")
    return [row for row in choose_rows(view, rows, component, since, until) if job is None or row.get("job") == job]


def _verdict(reader: Reader, listing: str | None, options: dict[str, Any]) -> int:
    severity = find_severity(options["severity"] or "Minor")
    every = {**options, "since": None, "until": None, "all_faults": False, "job": None}
    faults = fetch_rows(reader, VIEWS["fault"], every)
    rdus = fetch_rows(reader, VIEWS["op-state"], every)
    verdict = judge(faults, rdus, severity, is_current=reader.age_s is None)
    if options["as_json"]:
        found: dict[str, object] = {"status": verdict.word, "faults": verdict.faults, "rdus": verdict.rdus}
        if listing is not None:
            found[VIEWS[listing].key] = fetch_rows(reader, VIEWS[listing], options)
        click.echo(json_text(found))
    elif listing is None:
        click.echo(verdict.line)
    return verdict.exit_status


def _follow(reader: Reader, view: View, rows: list[Row], options: dict[str, Any]) -> None:
    """Print rows, then new ones and faults with a changed state, until Ctrl-C."""
    clock = SystemClock()
    printed: dict[str, object] = {}
    has_header = True
    last: str | None = None
    while True:
        for row in rows:
            identity = str(row[view.columns[0]])
            last = identity if identity not in printed else last
            if printed.get(identity, ()) == row.get("fault_state"):
                continue
            printed[identity] = row.get("fault_state")
            _print_rows(view, [row], options, has_header)
            has_header = False
        clock.sleep(_FOLLOW_EVERY_S)
        if view.op == "faults":  # states change in old rows too
            rows = fetch_rows(reader, view, {**options, "all_faults": True})
        else:
            rows = fetch_rows(reader, view, options, after=last)


def _print_rows(view: View, rows: list[Row], options: dict[str, Any], has_header: bool = True) -> None:
    if options["follow"] and options["as_json"]:
        click.echo("\n".join(json_line(row) for row in rows))
    elif options["as_csv"]:
        click.echo(view_csv(view, rows, options["verbose"], has_header))
    elif not options["as_json"]:
        _print_lines(view_blocks(view, rows) if options["verbose"] else view_lines(view, rows))


def _print_lines(lines: list[str]) -> None:
    if lines:
        click.echo("\n".join(lines))


# -- changing --------------------------------------------------------------------------------------------------------


def _change(change: str, socket: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    if change == "--set-policy":
        with connect_admin(socket) as client:
            request = policy_request(options, client.call("policies")["policies"])
            answer = client.call("set_policy", **request)
    else:
        op, arguments = change_request(change, options, SystemClock().now())
        with connect_admin(socket) as client:
            answer = client.call(op, **arguments)
    answer.pop("ok", None)
    if reason := answer.get("unwritten"):
        click.echo(f"{_TOOL}: done, but not yet in the node's database: {reason}", err=True)
    return answer


# -- options ---------------------------------------------------------------------------------------------------------


#: Options that belong to certain changes only.
_BELONG_TO: Final = {
    "count": ("--inject", "--set-policy"), "seed": ("--inject", "--scenario"), "data": ("--inject",),
    "window": ("--set-policy",), "action": ("--set-policy",), "fault_type": ("--set-policy",),
    "deadline": ("--drain", "--maintain"), "start": ("--maintain",), "end": ("--maintain",),
    "reason": ("--cordon", "--drain", "--release", "--maintain"),
}  # fmt: skip


#: Listings whose rows name a job.
_OF_JOBS: Final = ("error", "fault", "applications")


def _check_options(options: dict[str, Any], listing: str | None, changes: list[str]) -> None:
    if options["as_json"] and options["as_csv"]:
        raise InvalidArgument("--json and --csv cannot be combined; choose one")
    if options["severity"] is not None:
        find_severity(options["severity"])
        if not options["exit_code"] and "--set-policy" not in changes:
            raise InvalidArgument("--severity is only for --exit-code and --set-policy")
    if options["follow"] and (listing is None or not VIEWS[listing].is_paged or options["exit_code"]):
        raise InvalidArgument("--follow is only for -l error and -l fault, without --exit-code")
    if options["job"] is not None and listing not in _OF_JOBS:
        raise InvalidArgument(f"--job is only for {', '.join(f'-l {name}' for name in _OF_JOBS)}")
    for name, allowed in _BELONG_TO.items():
        if options[name] not in (None, ()) and not set(allowed) & set(changes):
            raise InvalidArgument(f"--{name.replace('_', '-')} is only for {' and '.join(allowed)}")
    if changes and (options["exit_code"] or options["as_csv"]):
        raise InvalidArgument(f"--exit-code and --csv are for listings, not for {changes[0]}")
    _times(options)


def _times(options: dict[str, Any]) -> tuple[int | None, int | None]:
    now = SystemClock().now()
    since, until = (None if options[name] is None else parse_time(options[name], now) for name in ("since", "until"))
    return since, until


def main() -> None:
    """Entry point."""
    run_command(snfadm)


if __name__ == "__main__":
    main()
