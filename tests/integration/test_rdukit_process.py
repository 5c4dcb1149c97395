"""The ``rdukit`` command as a process: help, version, completion, status."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rdukit
from rdukit.cli.app import SUMMARIES
from support import shows

pytestmark = shows("completion", "status", "box", "zoo", "pef")

RDUKIT = Path(sys.executable).with_name("rdukit")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([RDUKIT, *arguments], capture_output=True, text=True, check=False)


def test_help_lists_every_command_without_importing_its_part() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    for name, summary in SUMMARIES.items():
        assert name in shown.stdout
        assert summary.split()[0] in shown.stdout


def test_the_version_is_the_package_version() -> None:
    assert run("--version").stdout.split()[-1] == rdukit.__version__


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_and_completes_commands_of_other_parts(shell: str) -> None:
    assert "_RDUKIT_COMPLETE" in run("completion", shell).stdout
    asked = {"_RDUKIT_COMPLETE": "bash_complete", "COMP_WORDS": "rdukit zoo sh", "COMP_CWORD": "2"}
    shown = subprocess.run([RDUKIT], capture_output=True, text=True, check=False, env={**os.environ, **asked})
    assert shown.stdout.split() == ["plain,show"]


def test_status_of_an_idle_machine_says_how_to_start_each_part(tmp_path: Path) -> None:
    environment = {**os.environ, "RDUKIT_HOME": str(tmp_path / "home"), "RDUKIT_GATEWAY_URL": "http://127.0.0.1:9"}
    told = [
        subprocess.run([RDUKIT, "status", *more], capture_output=True, text=True, check=True, env=environment).stdout
        for more in ((), ("--json",))
    ]
    assert [line.split()[0] for line in told[0].splitlines()] == ["home", "node", "platform", "box"]
    for words in ("not created yet", "rdukit node start", "rdukit up", "rdukit box run"):
        assert words in told[0]
    assert [part["state"] for part in json.loads(told[1])["parts"]] == ["stopped"] * 4
    assert not (tmp_path / "home").exists()
