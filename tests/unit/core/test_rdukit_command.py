"""The ``rdukit`` command itself: help, usage errors, exit statuses."""

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

from rdukit.cli.app import GROUP, SUMMARIES, run_command
from rdukit.cli.app import cli as root
from rdukit.cli.status import PartStatus, are_ready
from rdukit.errors import IllegalValue, NotFound, RdukitError
from support import shows

pytestmark = shows("completion", "status", "errors")


class Ended(NamedTuple):
    """How a command ended and what it printed."""

    status: str | int | None
    stdout: str
    stderr: str


Run = Callable[..., Ended]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command in this process, as its script does."""

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["rdukit", *arguments])
        with pytest.raises(SystemExit) as stop:
            run_command(root)
        return Ended(stop.value.code, *capsys.readouterr())

    return run


def test_an_unknown_command_is_a_usage_error(run: Run) -> None:
    shown = run("fly")
    assert shown.status == 2
    assert "No such command 'fly'" in shown.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["zooo"], "Did you mean 'zoo'?"),
        (["zoo", "lst"], "Did you mean 'list'?"),
        (["box", "ls"], "Did you mean 'list'?"),
        (["pef", "bild"], "Did you mean 'build'?"),
        (["jobs"], "Did you mean 'job'?"),
        (["node", "show"], "Did you mean 'status'?"),
        (["zoo", "xyz"], "There are: "),
        (["zoo", "show", "logrg"], "Did you mean 'logreg'?"),
        (["job", "list", "--state", "runing"], "Did you mean 'running'?"),
        (["box", "describe", "logrge"], "Did you mean 'logreg'?"),
        (["zoo", "list", "--jsn"], "Did you mean '--json'?"),
    ],
    ids=" ".join,
)
def test_a_mistyped_word_is_refused_with_the_nearest_one(run: Run, words: list[str], hint: str) -> None:
    shown = run(*words)
    assert shown.status in {2, 3} and hint in shown.stderr


def leaf_commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Context, click.Command]]:
    if not isinstance(command, click.Group):
        yield context, command
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from leaf_commands(inner, click.Context(inner, parent=context, info_name=name))


#: Commands that only programs of ours call.
INTERNAL = {"rdukit box fork-server", "rdukit box check-bundle"}


def test_every_example_can_be_parsed_and_every_command_has_two() -> None:
    few = []
    for context, command in leaf_commands(root, click.Context(root, info_name="rdukit")):
        paragraphs = re.split(r"\n\s*\n", command.help or "")
        examples = [each.partition("Example: ")[2] for each in paragraphs if each.lstrip().startswith("Example: ")]
        path = context.command_path.split()
        if len(set(examples)) < 2 and context.command_path not in INTERNAL:
            few.append(context.command_path)
        for example in examples:
            words = shlex.split(example.split(" > ")[0])
            assert words[: len(path)] == path, f"{context.command_path}: {example}"
            command.make_context(path[-1], words[len(path) :])
    assert few == []


def test_help_shows_first_sentences_whole() -> None:
    for name in SUMMARIES:
        shown = CliRunner().invoke(root, [name, "--help"])
        assert shown.exit_code == 0, shown.output
        assert "..." not in shown.stdout.partition("Commands:")[2]


def test_a_usage_error_is_a_document_too_for_whoever_asked_for_json(run: Run) -> None:
    shown = run("fly", "--json")
    assert shown.status == 2
    assert json.loads(shown.stdout)["error"]["code"] == "invalid-argument"
    assert "No such command 'fly'" in json.loads(shown.stdout)["error"]["message"]
    assert run("fly").stdout == ""


def test_every_entry_point_has_its_summary_line() -> None:
    assert {point.name for point in entry_points(group=GROUP)} == set(SUMMARIES)


@pytest.mark.parametrize("name", sorted(SUMMARIES))
def test_a_commands_help_starts_with_its_summary(name: str) -> None:
    command = root.get_command(click.Context(root), name)
    assert command is not None
    assert command.help is not None
    first_paragraph = " ".join(command.help.split("\n\n")[0].split())
    assert first_paragraph.split(". ")[0].rstrip(".") + "." == SUMMARIES[name]


@pytest.mark.parametrize(
    ("error", "status"),
    [(NotFound("no"), 3), (IllegalValue("no"), 2), (RdukitError("no"), 1), (click.UsageError("no"), 2),
     (KeyboardInterrupt(), 130), (click.Abort(), 130)],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else str(value),
)  # fmt: skip
def test_errors_become_exit_statuses(
    error: BaseException, status: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    def fail() -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["fail"])
    with pytest.raises(SystemExit) as stop:
        run_command(fail)
    assert stop.value.code == status
    assert capsys.readouterr().out == ""


def test_a_status_is_good_if_what_is_there_is_ready_and_what_is_named_is_there() -> None:
    node, away = PartStatus("node", "running", ""), PartStatus("platform", "stopped", "")
    for state, good in (("running", True), ("starting", False), ("degraded", False), ("unknown", False)):
        found = [node, PartStatus("platform", state, "")]
        assert [are_ready(found, named) for named in ((), ("platform",), ("node", "platform"))] == [good] * 3
    assert [are_ready([node, away], named) for named in ((), ("node",), ("platform",))] == [True, True, False]
    boxes = [PartStatus("box", state, "") for state in ("running", "running")]
    assert are_ready(boxes, ("box",))
