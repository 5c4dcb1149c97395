"""``rdukit pef show``: what the compiler decided, for people and for machines."""

from pathlib import Path

import pytest

from rdukit.cli.tables import format_table
from rdukit.pef.file import read_pef
from rdukit.pef.inspect import describe_pef, pef_tables, projected_seconds, symbols_table
from support import shows
from support.pefs.examples import example_pef, write_example_pef

pytestmark = shows("pef")


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
