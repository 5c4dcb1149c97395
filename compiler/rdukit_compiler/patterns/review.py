"""Review of a user's rules: unknown operators and heuristics, and the reason for a rule without a match.

A rule without a match has no effect, which its author should learn. Therefore unknown operators and heuristics are
errors, and a rule without a match is reported with what the graph lacks. Source: ours; the vendor prints match counts
(compiler reference 5.4, item 13).
"""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache

from rdukit.errors import RuleError
from rdukit_compiler.ir import ModelGraph
from rdukit_compiler.operators.vocabulary import ALIASES, CASTS, GEMMS, LOSSES, VENDORS, VIEWS, words_of
from rdukit_compiler.patterns.syntax import Rule
from rdukit_compiler.torch_private import all_operator_names


def check_words(rules: Iterable[Rule], graphs: Iterable[ModelGraph], heuristics: Collection[str]) -> None:
    """Check that every operator and heuristic that ``rules`` name exists.

    Args:
        graphs: the compiled graphs; operators of any library in them are known.
        heuristics: names of all heuristics.
    Raises:
        RuleError: names file, line, rule, entry, the word and the nearest valid ones.
    """
    traced = {word for graph in graphs for operator in graph.operators for word in words_of(operator)}
    for rule in rules:
        if rule.heuristic is not None and rule.heuristic not in heuristics:
            near = find_nearest(rule.heuristic, heuristics)
            raise RuleError(
                f"{rule.source}, line {rule.line}: rule {rule.name!r}, key 'heuristic': there is no heuristic "
                f"{rule.heuristic!r}{_meant(near)}; expected {', '.join(sorted(heuristics))}, or a heuristic of a "
                "--heuristics file",
                file=rule.source, line=rule.line, rule=rule.name, entry="", key="heuristic",
            )  # fmt: skip
        for entry in rule.entries:
            for word in entry.op_types:
                if word not in traced and word not in _operator_words():
                    near = find_nearest(word, [*traced, *_operator_words()])
                    raise RuleError(
                        f"{rule.source}, line {entry.line}: rule {rule.name!r}, entry {entry.name!r}, key 'op_type': "
                        f"there is no operator {word!r}{_meant(near)}; expected names of PyTorch operators in lower "
                        f"case; this graph has {_some(sorted(traced))}",
                        file=rule.source, line=entry.line, rule=rule.name, entry=entry.name, key="op_type",
                    )  # fmt: skip


def explain_no_match(rule: Rule, graphs: Sequence[ModelGraph], taken: Mapping[str, str]) -> str:
    """Explain why ``rule`` matched nowhere, as a sentence for its author.

    Args:
        taken: operator that another rule fused → that rule, over all graphs.
    """
    words = [words_of(operator) for graph in graphs for operator in graph.operators]
    present = {word for found in words for word in found}
    place = f"rule {rule.name!r} ({rule.source}, line {rule.line}) matched nothing: "
    chosen = {option for entry in rule.entries for option in entry.options}
    for entry in rule.entries:
        if entry.required and not entry.options and entry.name not in chosen and present.isdisjoint(entry.op_types):
            wanted = " or ".join(entry.op_types)
            near = [word for op_type in entry.op_types for word in find_nearest(op_type, present)]
            return (
                f"{place}the graph has no {wanted} (entry {entry.name!r}){_meant(near)}; it has {_some(_main(words))}"
            )
    others = sorted({other for name, other in taken.items() if other != rule.name and _names(rule, graphs, name)})
    if others:
        return (
            f"{place}its operators are connected differently, or {_some(others)} fused them earlier; rules of higher "
            "priority run first"
        )
    return f"{place}the graph has its operators, but not connected as the pattern says"


def find_nearest(word: str, known: Iterable[str]) -> list[str]:
    """Find up to three words of ``known`` that ``word`` probably stands for: equal without underscores, or similar."""
    plain = _plain(word)
    by_plain: dict[str, str] = {}
    for name in sorted(known):
        if not name.startswith("_"):
            by_plain.setdefault(_plain(name), name)
    near = [by_plain[plain]] if plain in by_plain else []
    near += [by_plain[name] for name in difflib.get_close_matches(plain, by_plain, n=3, cutoff=0.6)]
    return list(dict.fromkeys(near))[:3]


@cache
def _operator_words() -> frozenset[str]:
    """Return the words for operators of torch, and of loaded libraries, that a rule may use."""
    registered = (name.partition("::")[2].partition(".")[0] for name in all_operator_names())
    listed = {*ALIASES, *ALIASES.values(), *VIEWS, *CASTS, *GEMMS, *LOSSES, *VENDORS}
    return frozenset(listed | {name.lower() for name in registered})


def _names(rule: Rule, graphs: Sequence[ModelGraph], name: str) -> bool:
    """Return whether an entry of ``rule`` may bind operator ``name``."""
    operator = next((o for graph in graphs for o in graph.operators if o.name == name), None)
    return operator is not None and any(not words_of(operator).isdisjoint(entry.op_types) for entry in rule.entries)


def _main(words: Sequence[frozenset[str]]) -> list[str]:
    """Return one word per operator kind, the longest: the names of operators in the trace."""
    return sorted({max(found, key=len) for found in words})


def _plain(word: str) -> str:
    return word.lower().replace("_", "")


def _meant(near: Sequence[str]) -> str:
    return f" (did you mean {' or '.join(repr(word) for word in dict.fromkeys(near))}?)" if near else ""


def _some(names: Sequence[str]) -> str:
    shown = [name for name in names if not name.startswith("_")]
    return ", ".join(shown[:12]) + (", …" if len(shown) > 12 else "")
