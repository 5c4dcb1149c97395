"""``snfadm diag``: diagnose a node, before its use, after a repair, or in a job's prolog.

Source: ours, with the levels and the exit status that ``dcgmi diag`` has.
"""

import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from rdukit import __version__
from rdukit.errors import InvalidArgument, NotFound
from rdukit.hardware import find_node
from rdukit_node.cli.fault_views import with_node_prefix
from rdukit_node.cli.output import aligned, connect, csv_option, csv_text, json_option, json_text, node_options
from rdukit_node.diagnostic.model import LEVELS, CheckResult, CheckVerdict, check_node, plan_tiles, worst
from rdukit_node.diagnostic.tiles import check_tiles, count_checks
from rdukit_node.inventory import find_component

COLUMNS: Final = ("check", "component", "verdict", "seconds", "said", "advice")


@click.command()
@click.option("-r", "--run", "level", type=click.IntRange(1, 3), default=1, show_default=True, help="The level.")
@click.option("-c", "--component", metavar="PREFIX", help="Check only this component and its parts.")
@click.option("--fail-early", is_flag=True, help="Stop at the first failure.")
@click.option("-v", "--verbose", is_flag=True, help="Print a line for each check of each tile.")
@json_option
@csv_option
@node_options
@click.pass_context
def diag(
    context: click.Context, /, level: int, component: str | None, fail_early: bool, verbose: bool, as_json: bool,
    as_csv: bool, socket_file: Path | None,
) -> None:  # fmt: skip
    """Diagnose the node. Level 1 queries it. Level 2 also computes and writes memory on each free tile, and compares.
    Level 3 takes longer, also in bf16 and on whole RDUs.

    Leased tiles are skipped. Exit status: 0 passed, perhaps with warnings or tiles skipped; 1 something
    failed.

    Example: snfadm diag -r 2 -c /NODE/XRDU_0

    Example: snfadm diag -r 1 --json
    """
    if as_json and as_csv:
        raise InvalidArgument("--json and --csv cannot be combined; choose one")
    status, where, socket, found = _ask(socket_file, component)
    if level > 1:
        plan = plan_tiles(status, where)
        found += plan.results
        tried = check_tiles(plan, str(status["chip"]), level, socket)
        if not (fail_early and worst(found) is CheckVerdict.FAIL):
            of_tiles = _shown(_until_failure(tried) if fail_early else tried, count_checks(plan, level))
            *_, found = _ask(socket_file, component)  # events on the node during the checks count, too
            found += [*plan.results, *of_tiles]
    verdict = worst(found)
    if as_json:
        document = {"node": status["node"], "platform": status["platform"], "level": level, "verdict": str(verdict)}
        click.echo(json_text({**document, "checks": [result.as_json() for result in found]}))
    elif as_csv:
        click.echo(csv_text(COLUMNS, (result.as_json() for result in found)))
    else:
        click.echo(f"{status['node']} ({status['platform']}), level {level}: {LEVELS[level]}")
        click.echo("\n".join(result_lines(found if verbose else summed(found))))
        click.echo(f"{verdict}: {_counts(found)}")
    context.exit(1 if verdict is CheckVerdict.FAIL else 0)


def summed(results: Iterable[CheckResult]) -> list[CheckResult]:
    """Merge passed results, and skipped ones of the same reason, per check; others are unchanged."""
    found: list[CheckResult] = []
    groups: dict[tuple[str, str, CheckVerdict], list[CheckResult]] = {}
    for result in results:
        if result.verdict in (CheckVerdict.PASS, CheckVerdict.SKIP):
            groups.setdefault((result.check, result.said, result.verdict), []).append(result)
        else:
            found.append(result)
    for (check, said, verdict), group in groups.items():
        component = group[0].component if len(group) == 1 else f"{len(group)} components"
        found.append(CheckResult(check, component, verdict, said, group[0].advice, sum(r.seconds for r in group)))
    order = list(dict.fromkeys(result.check for result in found))
    return sorted(found, key=lambda result: (order.index(result.check), -list(CheckVerdict).index(result.verdict)))


def result_lines(results: Iterable[CheckResult]) -> list[str]:
    """Return a line per result; results that did not pass have a line with advice below."""
    results = list(results)
    rows = [(r.check, str(r.verdict), r.component, r.said) for r in results]
    lines = []
    for line, result in zip(aligned(rows), results, strict=True):
        lines.append(line)
        if result.advice and result.verdict is not CheckVerdict.PASS:
            lines.append(f"    {result.advice}")
    return lines


def _ask(socket_file: Path | None, component: str | None) -> tuple[dict[str, Any], str, Path, list[CheckResult]]:
    """Return a node's status, the component's path there, its daemon's socket, and the checks of level 1."""
    with connect(socket_file) as node:
        status = dict(node.status())
        where = _find(str(status["platform"]), component)
        faults = node.call("faults", component=where)["faults"]
        found = check_node(status, node.call("inventory")["components"], faults, __version__, where)
        return status, where, node.path, found


def _shown(results: Iterator[CheckResult], count: int) -> list[CheckResult]:
    """Collect results, with a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        return list(results)
    with click.progressbar(results, length=count, label="tiles", file=sys.stderr) as bar:
        return list(bar)


def _until_failure(results: Iterator[CheckResult]) -> Iterator[CheckResult]:
    for result in results:
        yield result
        if result.verdict is CheckVerdict.FAIL:
            return


def _find(platform: str, component: str | None) -> str:
    """Return the component's path. Raises: InvalidArgument: the node lacks the component."""
    if component is None:
        return "/NODE"
    try:
        return find_component(find_node(platform), with_node_prefix(component)).path
    except NotFound as error:
        raise InvalidArgument(error.message) from error


def _counts(results: Iterable[CheckResult]) -> str:
    by_verdict = {word: len(list(group)) for word, group in itertools.groupby(sorted(r.verdict for r in results))}
    words = {
        CheckVerdict.PASS: "passed",
        CheckVerdict.WARN: "with warnings",
        CheckVerdict.SKIP: "skipped",
        CheckVerdict.FAIL: "failed",
    }
    return ", ".join(f"{by_verdict[verdict]} {words[verdict]}" for verdict in CheckVerdict if verdict in by_verdict)
