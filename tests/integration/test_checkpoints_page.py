"""The page of checkpoints as its reader follows it: a comment behind a command is what it is refused with."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rdukit.errors import InvalidArgument
from rdukit_zoo.checkpoints.cli import checkpoint
from support import shows
from support.pages import code_blocks, read_page

pytestmark = shows("checkpoints", "huggingface")

PAGE = read_page("checkpoints.md")


def test_the_pages_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for program in code_blocks(PAGE):
        exec(compile(program, "checkpoints.md", "exec"), names)
    said = []
    for line in "".join(code_blocks(PAGE, "sh")).splitlines():
        command, _, refusal = line.partition("  # ")
        done = CliRunner().invoke(checkpoint, command.split()[2:])
        if refusal:
            assert isinstance(done.exception, InvalidArgument) and refusal in done.exception.message, line
        else:
            assert done.exit_code == 0, (line, done.exception)
            said.append(done.output)
    assert len(said) == 5 and "heads=4" in said[1] and said[-1].endswith("tensors are the same\n")
