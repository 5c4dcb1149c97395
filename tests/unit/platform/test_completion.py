"""What the shell is offered for an argument."""

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from rdukit.cli.app import cli
from rdukit_platform.cli.complete import choose
from support import shows

pytestmark = shows("completion")


def offered(words: list[str], begun: str = "") -> list[str]:
    found = ShellComplete(cli, {}, "rdukit", "_RDUKIT_COMPLETE").get_completions(words, begun)
    return [item.value for item in found]


def test_names_that_begin_so_are_offered_with_what_is_told_of_them() -> None:
    jobs = [{"id": "job-1a", "name": "night", "state": "running"}, {"id": "job-2", "name": None, "state": "failed"}]
    found = choose(list(jobs), "id", ("name", "state"), "job-")
    assert [(item.value, item.help) for item in found] == [("job-1a", "night running"), ("job-2", "failed")]
    assert [item.value for item in choose(list(jobs), "id", (), "job-1")] == ["job-1a"]


def test_without_a_platform_nothing_is_offered_and_contexts_are_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path))
    assert offered(["job", "show"]) == []
    assert offered(["context", "use"], "h") == ["home"]
    (tmp_path / "contexts.json").write_text("{")
    assert offered(["context", "use"]) == []
