"""The page of scaling as its reader follows it."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from rdukit.cli.app import cli
from rdukit.collectives.topology import make_machine
from rdukit.pef.file import write_pef
from support import shows
from support.pages import code_blocks, read_page
from support.pefs.examples import example_kernels, training_pef

pytestmark = shows("scaling", "collective", "simulate")

PAGE = read_page("scaling.md")


def test_the_pages_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_pef(Path("model.pef"), training_pef(), example_kernels(), {})
    lines = [line for line in "".join(code_blocks(PAGE, "sh")).splitlines() if line.startswith("rdukit ")]
    for line in lines:
        # profile runs kernels (conformance/test_pef_profile); --faults asks a daemon (integration/test_faulty_links)
        if " pef profile " not in line and "--faults" not in line:
            done = CliRunner().invoke(cli, line.split()[1:])
            assert done.exit_code == 0, (line, done.output, done.exception)
    assert len(lines) == 13 and os.path.exists("scaling.svg")


def test_the_pages_topology_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(code_blocks(PAGE, "yaml")[0])
    assert make_machine(str(file)).ranks == 4 * 16 * 8
