"""YAML with line numbers: what readers of YAML disagree about is refused, and no file takes much time."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rdukit.errors import InvalidArgument
from rdukit.strict_yaml import TextPosition, read_yaml
from rdukit_modelbox.contract.box import box_names, find_box_file, load_box
from support import shows

pytestmark = shows("modelbox", "every box")


def test_values_know_their_lines() -> None:
    found = read_yaml("a: 1\nb:\n  - c: x\n    d: [1, 2]\n")
    assert found.value == {"a": 1, "b": [{"c": "x", "d": [1, 2]}]}
    assert found.faults == []
    assert found.mark_of(("b", 0, "d")) == TextPosition(4, 5)
    assert found.mark_of(("b", 0, "d", 1)) == TextPosition(4, 12)
    assert found.mark_of(("b", 0, "missing", "deeper")) == TextPosition(3, 5)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4), ("1E3", 1000.0), ("-0.5", -0.5), ("12", 12), ("0x1f", 31), ("0o17", 15), (".inf", math.inf),
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None), ("text", "text"), ("1.2.3", "1.2.3"),
        ("2024-01-01", "2024-01-01"), ("'12'", "12"), ('"yes"', "yes"), ("!!str 12", "12"), ("n", "n"), ("=", "="),
    ],
)  # fmt: skip
def test_scalars_are_read_as_yaml_1_2_says(text: str, value: object) -> None:
    found = read_yaml(f"a: {text}\n")
    assert (found.value, found.faults) == ({"a": value}, [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("yes", 'write true, or "yes" for text'), ("Off", "write false"), ("010", "octal to some readers; write 10"),
        ("1:30", "base 60"), ("1_000", "write 1000"),
    ],
)  # fmt: skip
def test_what_readers_of_yaml_disagree_about_is_refused(text: str, words: str) -> None:
    (fault,) = read_yaml(f"top:\n  a: {text}\n").faults
    assert (fault.mark, fault.key) == (TextPosition(2, 6), "top.a")
    assert words in fault.message


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "duplicate key; the first is in line 1"),
        ("a: !!python/object:os.system x\n", 1, "tag"),
        ("a: !mine {b: 1}\n", 1, "tag '!mine' is not valid"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", 3, "merge keys"),
        ("a: &x [*x]\n", 1, "no anchor above"),
        ("a: *x\n", 1, "no anchor above"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("a:\n\tb: 1\n", 2, "spaces, not tabs"),
        ("[a, b]: 1\n", 1, "a key must be a plain word"),
        ("a: 'x\n", 2, "not valid YAML"),
        (f"a: {'9' * 5000}\n", 1, "more than 30 digits"),
    ],
)
def test_traps_are_faults_with_their_line(text: str, line: int, words: str) -> None:
    faults = read_yaml(text).faults
    assert [fault.mark.line for fault in faults if words in fault.message] == [line], faults


def test_an_anchor_may_be_used_again() -> None:
    found = read_yaml("a: &x [1, 2]\nb: *x\nc: *x\n")
    assert (found.value, found.faults) == ({"a": [1, 2], "b": [1, 2], "c": [1, 2]}, [])


def test_bombs_end() -> None:
    laughs = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    # PyYAML since 6.0.4 has a limit of its own, in other words, for some of what is nested.
    for text, words in ((laughs, "anchors written out"), ("[" * 100_000, "nest"), ("{a: " * 100_000, "nest"),
                        ("- " * 100_000, "nest"), ("x" * (1 << 21), "characters")):  # fmt: skip
        assert words in read_yaml(text).faults[0].message


@pytest.mark.parametrize("name", box_names())
def test_the_boxes_here_read_as_any_reader_reads_them(name: str) -> None:
    text = find_box_file(name).read_text()
    assert read_yaml(text).value == yaml.safe_load(text)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab1:-[]{}&*!|>'\"#%@,?~ \n\t\0é0x.", max_size=60))
def test_any_text_is_read_or_refused_without_an_exception(text: str) -> None:
    read_yaml(text)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_that_is_changed_anywhere_is_valid_or_refused_with_lines(data: st.DataObject, tmp_path: Path) -> None:
    value: Any = read_yaml(find_box_file("logreg").read_text()).value
    here: Any = value
    while True:
        key = data.draw(st.sampled_from(sorted(here) if isinstance(here, dict) else range(len(here))))
        if not isinstance(here[key], (dict, list)) or not here[key] or data.draw(st.booleans()):
            break
        here = here[key]
    here[key] = data.draw(
        st.sampled_from([None, True, -1, 1.5, "", "o1", "x" * 3000, [], [None], {}, {"a": 1}, [[1]], "../x", math.inf])
    )
    path = tmp_path / "modelbox.yaml"
    path.write_text(yaml.dump(value, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)))
    try:
        load_box(path)
    except InvalidArgument as error:
        faults = error.detail["faults"]
        assert isinstance(faults, list)
        assert all(fault["line"] >= 1 and fault["message"] for fault in faults)
