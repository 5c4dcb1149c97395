"""``rdukit pef show``: what the compiler decided, for people and for machines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rdukit.cli.tables import format_table
from rdukit.pef.file import read_pef
from rdukit.pef.inspect import describe_pef, pef_tables, projected_seconds, symbols_table
from support.pefs.examples import example_pef, write_example_pef

RDUKIT = Path(sys.executable).with_name("rdukit")


def rdukit(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([RDUKIT, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.fixture
def pef(tmp_path: Path) -> Path:
    return write_example_pef(tmp_path / "example.pef", natives=True)


def test_the_text_names_decisions_resources_and_projected_cost(pef: Path) -> None:
    text = "\n".join(format_table(table) for table in pef_tables(read_pef(pef)))
    for word in ("SAFE_GEMM", "nothing follows that would fit", "native", "portable", "projected", "lr", "0.25", "fwd"):
        assert word in text
    assert "200 us, 263 k cycles" in text


def test_every_figure_in_seconds_or_cycles_is_labelled_projected(pef: Path) -> None:
    described = describe_pef(read_pef(pef))
    assert "cost" not in described["sections"][0]
    assert described["sections"][0]["projected_cost"]["cycles"] == 132_000
    assert described["projected"]["seconds"] == pytest.approx(projected_seconds(example_pef()))


def test_columns_are_aligned() -> None:
    lines = format_table(symbols_table(example_pef())).splitlines()
    assert lines[0] == "Symbols"
    place = lines[1].index("kind")
    assert all(line[place - 1] == " " and line[place] != " " for line in lines[2:])
    assert lines[2].endswith(" 48 B")


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
