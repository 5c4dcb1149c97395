"""The page docs/fusion-rules.md: its rules, its messages, and its tables of keys and heuristics."""

import re

import pytest

from rdukit.errors import RuleError
from rdukit_compiler.heuristics import heuristic_names
from rdukit_compiler.patterns.match import match_rules
from rdukit_compiler.patterns.review import explain_no_match
from rdukit_compiler.patterns.syntax import ENTRY_KEYS, MAX_ENTRIES, MAX_OPTIONAL, RULE_KEYS, parse_rules
from support import shows
from support.graphs import graph_of
from support.pages import code_blocks, read_page

pytestmark = shows("fusion-rules", "o1")

PAGE = read_page("fusion-rules.md")
(RULES,) = code_blocks(PAGE, "yaml")


def first_cells(heading: str) -> set[str]:
    """The names in the first column of a section's table."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_the_pages_rules_match_as_the_page_prints() -> None:
    graph = graph_of("x -> linear -> relu -> linear -> cross_entropy_loss")
    fused, never = parse_rules(RULES, "my.yaml")
    (match,) = match_rules(graph, [fused, never])
    assert (match.rule, match.heuristic, len(match.operators)) == ("hidden_relu", "SAFE_GEMM", 2)
    assert f"[warning Samba]: {explain_no_match(never, [graph], {})}\n" in PAGE


def test_the_pages_error_is_that_of_a_mistyped_key() -> None:
    with pytest.raises(RuleError) as found:
        parse_rules(RULES.replace("op_type", "op_typ", 1), "my.yaml")
    assert f"error [{found.value.code}]: {found.value.message}\n" in PAGE


def test_the_page_has_every_key_heuristic_and_limit() -> None:
    assert first_cells("Keys of a rule") == set(RULE_KEYS)
    keys = {re.sub(r":.*", "", name) for name in first_cells("Keys of an entry")}
    assert {re.sub(r"^set .*", "set <parameter>", key) for key in keys} == set(ENTRY_KEYS)
    assert first_cells("Heuristics") == set(heuristic_names())
    assert f"At most {MAX_OPTIONAL} in a rule" in PAGE and f"at most {MAX_ENTRIES} entries" in PAGE
