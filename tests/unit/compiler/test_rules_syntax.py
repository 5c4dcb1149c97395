"""Rule files: what is read, and what is refused with which words."""

import logging
from pathlib import Path

import pytest

from rdukit.errors import RuleError
from rdukit_compiler.patterns.syntax import Rule, parse_rules
from rdukit_compiler.rules import load_default_rules, load_rules
from support import shows

pytestmark = shows("o1")

GOOD = """
block:
  priority: 4
  heuristic: {name: MHA, head_dim_sharding_degree: 4, tp_dim: Auto}
  pattern:
    cast: {op_type: to, required: false, child: fc}
    fc:
      op_type: [Linear, addmm]
      children: [either]
      set m_shard_degree: 4
    either: {match_first_option: [one, two]}
    one: {op_type: relu}
    two: {op_type: gelu, included: false}
"""


def one_rule(text: str) -> Rule:
    (rule,) = parse_rules(text, "mine.yaml")
    return rule


def test_everything_of_the_documented_syntax_is_read() -> None:
    rule = one_rule(GOOD)
    assert (rule.name, rule.priority, rule.heuristic) == ("block", 4, "MHA")
    assert rule.parameters == {"head_dim_sharding_degree": 4, "tp_dim": "Auto"}
    cast, fc, either, _, two = rule.entries
    assert not cast.required
    assert fc.op_types == ("linear", "addmm")
    assert fc.settings == {"m_shard_degree": 4}
    assert fc.children == ("either",)
    assert either.options == ("one", "two")
    assert not two.included
    assert fc.line == 7


def test_a_rule_without_heuristic_uses_the_default() -> None:
    assert one_rule("a: {priority: 0, pattern: {x: {op_type: relu}}}").heuristic is None


def test_an_empty_file_has_no_rules() -> None:
    assert parse_rules("# nothing yet\n", "mine.yaml") == ()


def test_of_two_rules_with_one_name_the_last_counts_and_a_warning_says_so(caplog: pytest.LogCaptureFixture) -> None:
    text = "a: {priority: 1, pattern: {x: {op_type: relu}}}\na: {priority: 9, pattern: {x: {op_type: gelu}}}\n"
    with caplog.at_level(logging.WARNING):
        assert one_rule(text).priority == 9
    assert "rule=a" in caplog.text
    assert "lines=1,2" in caplog.text


def test_child_and_children_together_are_merged_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    text = (
        "a: {priority: 1, pattern: {x: {op_type: relu, child: y, children: [z, y]}, y: {op_type: add}, "
        "z: {op_type: mul}}}"
    )
    with caplog.at_level(logging.WARNING):
        assert one_rule(text).entries[0].children == ("y", "z")
    assert "merged" in caplog.text


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        ("  pattern: {x: {op_type: relu}}", 1, ["'priority'", "missing"]),
        ("  priority: 1", 1, ["'pattern'", "missing"]),
        ("  priority: high\n  pattern: {x: {op_type: relu}}", 2, ["'high'", "integer"]),
        ("  priority: -1\n  pattern: {x: {op_type: relu}}", 2, ["-1", "from 0"]),
        ("  priority: true\n  pattern: {x: {op_type: relu}}", 2, ["integer"]),
        (
            "  priority: 1\n  colour: red\n  pattern: {x: {op_type: relu}}",
            3,
            ["'colour'", "priority, heuristic, pattern"],
        ),
        ("  priority: 1\n  heuristic: {tp_dim: 1}\n  pattern: {x: {op_type: relu}}", 3, ["'heuristic'", "'name'"]),
        ("  priority: 1\n  heuristic: [A]\n  pattern: {x: {op_type: relu}}", 3, ["'heuristic'", "single"]),
        ("  priority: 1\n  pattern: {}", 3, ["empty"]),
        ("  priority: 1\n  pattern: relu", 3, ["mapping of entry name"]),
        ("  priority: 1\n  pattern:\n    x: relu", 4, ["entry 'x'", "mapping"]),
        ("  priority: 1\n  pattern:\n    x: {child: y}\n    y: {op_type: add}", 4, ["entry 'x'", "'op_type'"]),
        ("  priority: 1\n  pattern:\n    x: {op_type: []}", 4, ["entry 'x'", "list of operator names"]),
        ("  priority: 1\n  pattern:\n    x: {op_type: a, loop: 3}", 4, ["'loop'", "set <parameter>"]),
        ("  priority: 1\n  pattern:\n    x: {op_type: a, child: b}", 4, ["'b'", "expected x"]),
        ("  priority: 1\n  pattern:\n    x: {op_type: a, child: [x]}", 4, ["children: [a, b]"]),
        ("  priority: 1\n  pattern:\n    x: {op_type: a, required: maybe}", 4, ["'maybe'", "true, false"]),
        ("  priority: 1\n  pattern:\n    x: {op_type: a, op_type: b}", 4, ["twice"]),
        ("  priority: 1\n  pattern:\n    x: {op_type: a}\n    x: {op_type: b}", 5, ["'x'", "twice"]),
        ("  priority: 1\n  pattern:\n    x: {op_type: a, set m: [1]}", 4, ["'set m'", "single"]),
        (
            "  priority: 1\n  pattern:\n    x: {match_first_option: [y], op_type: a}\n    y: {op_type: b}",
            4,
            ["alternation"],
        ),
        (
            "  priority: 1\n  pattern:\n    x: {match_first_option: [q]}\n    y: {op_type: b}",
            4,
            ["'q'", "expected x, y"],
        ),
        (
            "  priority: 1\n  pattern:\n    x: {op_type: a, child: y}\n    y: {op_type: b, child: x}",
            4,
            ["circle", "x -> y -> x"],
        ),
        ("  priority: 1\n  pattern:\n    x: {op_type: a, included: false}", 1, ["required and included"]),
        ("  priority: 1\n  pattern:\n    x: {op_type: a, required: false}", 1, ["required and included"]),
    ],
)
def test_a_wrong_rule_is_refused_with_its_line_and_what_is_legal(body: str, line: int, words: list[str]) -> None:
    with pytest.raises(RuleError) as caught:
        parse_rules(f"mine:\n{body}\n", "rules.yaml")
    assert caught.value.message.startswith(f"rules.yaml, line {line}: rule 'mine'")
    assert caught.value.detail["line"] == line
    for word in words:
        assert word in caught.value.message


def test_too_many_optional_entries_are_refused() -> None:
    entries = "".join(f"    o{i}: {{op_type: to, required: false}}\n" for i in range(13))
    with pytest.raises(RuleError, match="13 optional entries; expected up to 12"):
        parse_rules(f"a:\n  priority: 1\n  pattern:\n    x: {{op_type: relu}}\n{entries}", "rules.yaml")


@pytest.mark.parametrize(
    "text", ["[1, 2]", "just words", "a: {b: [", "1: {priority: 1}", "{? [a] : b}", "!!python/object:os.system x"]
)
def test_a_file_that_is_no_rule_mapping_is_refused(text: str) -> None:
    with pytest.raises(RuleError, match=r"rules\.yaml"):
        parse_rules(text, "rules.yaml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match=r"nowhere\.yaml cannot be read"):
        load_rules(tmp_path / "nowhere.yaml")


def test_rules_are_loaded_from_a_users_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    (rule,) = load_rules(path)
    assert rule.source == str(path)


def test_the_default_rules_load_and_their_names_differ() -> None:
    names = [rule.name for rule in load_default_rules()]
    assert len(names) == len(set(names)) >= 10
