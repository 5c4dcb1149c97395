"""Parameters against their legal values in words, and reading descriptions."""

import sys
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument, NotFound, Unavailable
from rdukit_platform.catalog.catalog import read_catalog
from rdukit_platform.catalog.check import is_legal
from rdukit_platform.catalog.model import Parameter, read_box
from rdukit_platform.paging import check_limit
from rdukit_platform.testing import COUNTER, counter_boxes
from rdukit_platform.worker.client import read_events


@pytest.mark.parametrize(
    ("kind", "legal", "good", "bad"),
    [
        ("int", "one of 16, 32", [16, 32.0], [17, "16", True, None]),
        ("string", "one of o0, o1", ["o0"], ["o2", "", 0, "o0, o1"]),
        ("float", "0 < x <= 1", [1, 0.5, 1e-9], [0, 1.1, "1", float("nan"), float("inf")]),
        ("float", "0 <= x < 1", [0, 0.99], [1, -1]),
        ("int", "1 <= x <= 100", [1, 100, 5.0], [0, 101, 1.5, True]),
        ("int", "0 <= x", [0, 10**9], [-1]),
        ("float", "x <= 2", [-5, 2], [2.1]),
        ("bool", "true or false", [True, False], [0, "true"]),
        ("string", "matches ^[a-z]+$", ["abc"], ["A1", 3]),
        ("string", "any string", ["", "x"], [1]),
        ("string", "whatever the box takes", ["x"], [1]),
    ],
)
def test_what_is_legal_in_words_is_understood(kind: str, legal: str, good: list[object], bad: list[object]) -> None:
    parameter = Parameter("p", kind, None, legal, "")
    assert [value for value in good if not is_legal(parameter, value)] == []
    assert [value for value in bad if is_legal(parameter, value)] == []


def test_an_unknown_box_names_those_there_are() -> None:
    with pytest.raises(NotFound, match="counter"):
        counter_boxes().box("nothing")


def test_a_wrong_description_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="description"):
        read_box({"name": "x", "verbs": "none"})


def test_the_catalog_is_read_from_the_command(tmp_path: Path) -> None:
    program = tmp_path / "boxes.py"
    program.write_text(f"import json\nprint(json.dumps([{COUNTER!r}]))\n")
    assert set(read_catalog([sys.executable, str(program)]).boxes) == {"counter"}


def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    program = tmp_path / "boxes.py"
    program.write_text("raise SystemExit('no boxes here')\n")
    with pytest.raises(Unavailable, match="no boxes here"):
        read_catalog([sys.executable, str(program)])


def test_events_are_read_from_their_frames() -> None:
    lines = [
        "event: log",
        "id: 4",
        'data: {"log": "x"}',
        "",
        ": still here",
        "",
        'data: {"kind": "result",',
        "data: ",
        'data: "sequence": 5}',
        "",
    ]
    found = list(read_events(iter(lines)))
    assert found[0] == {"kind": "log", "sequence": "4", "log": "x"}
    assert (found[1]["kind"], found[1]["sequence"]) == ("result", 5)


@pytest.mark.parametrize("limit", [0, -1, 201])
def test_a_page_has_a_legal_size(limit: int) -> None:
    with pytest.raises(InvalidArgument, match="1 to 200"):
        check_limit(limit)
