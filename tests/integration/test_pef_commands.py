"""``rdukit pef show``, ``diff`` and ``graph`` as commands: what they print and how they exit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rdukit.pef.picture import draw_pef
from support import shows
from support.pefs.examples import example_pef, write_example_pef

pytestmark = shows("pef")

RDUKIT = Path(sys.executable).with_name("rdukit")


def rdukit(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([RDUKIT, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.fixture
def pef(tmp_path: Path) -> Path:
    return write_example_pef(tmp_path / "example.pef", natives=True)


def test_the_command_prints_everything_and_exits_with_zero(pef: Path) -> None:
    shown = rdukit("pef", "show", pef)
    assert shown.returncode == 0, shown.stderr
    assert "PEF example.pef" in shown.stdout
    assert "Device memory" in shown.stdout
    assert "region.weight" not in shown.stdout
    assert "region.weight" in rdukit("pef", "show", pef, "--symbols").stdout
    assert "Kernels" not in rdukit("pef", "show", pef, "--sections").stdout


def test_json_is_one_object_with_all_sections(pef: Path) -> None:
    value = json.loads(rdukit("pef", "show", pef, "--json").stdout)
    assert [s["type"] for s in value["sections"]] == ["fwd", "opt"]
    assert [k["form"] for k in value["kernels"]].count("native") == 1
    assert {s["region"] for s in value["symbols"] if s["name"].startswith("weight")} == {"region.weight"}


@pytest.mark.parametrize(
    ("make", "status", "code"),
    [
        (lambda path: None, 3, "pef-not-found"),
        (lambda path: path.write_bytes(b"half a file"), 4, "pef-corrupt"),
    ],
)
def test_a_file_that_cannot_be_used_gives_one_line_and_its_own_exit_status(
    tmp_path: Path, make: object, status: int, code: str
) -> None:
    assert callable(make)
    path = tmp_path / "e.pef"
    make(path)
    shown = rdukit("pef", "show", path)
    assert shown.returncode == status
    assert shown.stdout == ""
    assert shown.stderr.startswith(f"error [{code}]: ")
    assert shown.stderr.count("\n") == 1
    as_json = rdukit("pef", "show", path, "--json")
    assert as_json.returncode == status
    assert json.loads(as_json.stdout)["error"]["code"] == code


def test_the_command_exits_with_0_when_equal_and_1_when_different(tmp_path: Path) -> None:
    same, other = write_example_pef(tmp_path / "a.pef"), write_example_pef(tmp_path / "b.pef", natives=True)
    equal, different = rdukit("pef", "diff", same, same), rdukit("pef", "diff", same, other, "--json")
    assert (equal.returncode, different.returncode) == (0, 1), equal.stderr + different.stderr
    assert "equal" in equal.stdout
    assert json.loads(different.stdout)["equal"] is False
    assert rdukit("pef", "diff", same, tmp_path / "none.pef").returncode == 3


def test_the_command_writes_the_picture(tmp_path: Path) -> None:
    made = tmp_path / "picture.svg"
    run = rdukit("pef", "graph", write_example_pef(tmp_path / "a.pef"), "-o", made)
    assert run.returncode == 0, run.stderr
    assert made.read_text() == draw_pef(example_pef())
