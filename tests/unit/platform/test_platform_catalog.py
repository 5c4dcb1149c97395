"""Parameters against their schemas, and reading descriptions."""

import math
from typing import Any

import pytest

from rdukit.box.sse import read_events
from rdukit.errors import IllegalValue, InvalidArgument, NotFound
from rdukit_platform.catalog.check import check_parameters, is_legal
from rdukit_platform.catalog.model import VerbParameter, read_box
from rdukit_platform.db.rows import check_limit
from support import shows
from support.platform.processes import counter_boxes

pytestmark = shows("catalog")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer", "enum": [16, 32]}, [16, 32.0], [17, "16", True, None]),
        ({"type": "string", "enum": ["o0", "a, b"]}, ["o0", "a, b"], ["o2", "", 0, "a", "b"]),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, [1, 0.5, 1e-9], [0, 1.1, "1", math.nan, math.inf]),
        ({"type": "integer", "minimum": 1, "maximum": 100}, [1, 100, 5.0], [0, 101, 1.5, True, 10**400]),
        ({"type": "integer", "minimum": 16, "maximum": 1024, "multipleOf": 8}, [16, 1024], [5, 20, 1032]),
        ({"type": "number", "multipleOf": 0.1}, [0.3, 0.35], ["0.3"]),  # which of them are, the box says
        ({"type": "boolean"}, [True, False], [0, "true"]),
        ({"type": "string", "pattern": "^[a-z]+$"}, ["abc"], ["A1", 3]),
        ({"type": "integer", "x-limits": {"maximum": "context"}}, [2048], [2049, 10**9]),
        ({"type": "integer", "x-limits": {"multipleOf": "zero"}}, [5], ["5"]),
        ({"type": "integer", "x-cases": [{"when": {"mode": ["o1"]}, "type": "integer", "maximum": 4}]}, [4], [5]),
        ({"type": "integer", "x-cases": [{"when": {"mode": ["o3"]}, "type": "integer", "maximum": 4}]}, [4, 5], ["x"]),
        ({"type": "integer", "x-when": {"mode": ["o3"]}}, [7], [8]),  # its default only
        ({}, ["whatever the box takes", 1], [math.nan]),
    ],
)
def test_a_value_is_legal_by_its_schema(schema: dict[str, Any], good: list[object], bad: list[object]) -> None:
    parameter = VerbParameter("p", "", 7, "", "", schema)
    values = {"context": 2048, "mode": "o1", "zero": 0}
    assert [value for value in good if not is_legal(parameter, value, values)] == []
    assert [value for value in bad if is_legal(parameter, value, values)] == []


def test_a_limit_of_another_parameter_is_its_value_in_the_request_or_its_default() -> None:
    described = {
        "name": "text",
        "verbs": [
            {
                "name": "compile",
                "parameters": [
                    {"name": "context", "type": "int", "default": 128, "schema": {"type": "integer"}},
                    {"name": "chunk", "type": "int", "default": 8, "legal": "x <= context",
                     "schema": {"type": "integer", "x-limits": {"maximum": "context"}}},
                ],
            }
        ],
    }  # fmt: skip
    box = read_box(described)
    check_parameters(box, box.verb("compile"), {"context": 4096, "chunk": 4096})
    with pytest.raises(IllegalValue, match="expected x <= context"):
        check_parameters(box, box.verb("compile"), {"chunk": 129})
    with pytest.raises(IllegalValue, match=r"is 1000.{95,99}…; expected"):
        check_parameters(box, box.verb("compile"), {"chunk": 10**400})
    with pytest.raises(IllegalValue, match=r"is 1\.5; expected a whole number, x <= context"):
        check_parameters(box, box.verb("compile"), {"chunk": 1.5})


def test_a_schema_that_is_none_is_the_boxs_fault() -> None:
    with pytest.raises(InvalidArgument, match="schema of parameter 'p' is not valid"):
        is_legal(VerbParameter("p", "", 1, "", "", {"type": "whole number"}), 1, {})


def test_an_unknown_box_names_those_there_are() -> None:
    with pytest.raises(NotFound, match="counter"):
        counter_boxes().box("nothing")


def test_a_wrong_description_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="description"):
        read_box({"name": "x", "verbs": "none"})


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
