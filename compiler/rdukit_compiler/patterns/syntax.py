"""Read fusion rule files. All errors are found here, with their line; the matcher relies on that.

Source: compiler reference 5.2, 5.3 (keywords found in public material; the grammar's checks are ours).
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import yaml

from rdukit.errors import RuleError

logger = logging.getLogger(__name__)

Scalar = bool | int | float | str

RULE_KEYS: Final = ("priority", "heuristic", "pattern")
ENTRY_KEYS: Final = ("op_type", "child", "children", "required", "included", "match_first_option", "set <parameter>")
#: Maximum optional entries: more would give a rule too many variants. The largest public rule has 8. Source: ours.
MAX_OPTIONAL: Final = 12
MAX_ENTRIES: Final = 128

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_SET = re.compile(r"set\s+([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """Operator of a pattern, or an alternation (``options`` not empty, ``op_types`` empty)."""

    name: str
    op_types: tuple[str, ...]
    children: tuple[str, ...]
    required: bool
    included: bool
    options: tuple[str, ...]
    #: Parameters of the ``set`` keys.
    settings: Mapping[str, Scalar]
    line: int


@dataclass(frozen=True, slots=True)
class Rule:
    """A fusion rule. ``heuristic`` is None for the compiler's default; ``parameters``: those of the heuristic's
    mapping.
    """

    name: str
    priority: int
    heuristic: str | None
    parameters: Mapping[str, Scalar]
    entries: tuple[RuleEntry, ...]
    source: str
    line: int


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Read the rules of the file at ``path``, in file order.

    Raises:
        RuleError: the file cannot be read, or a check of ``parse_rules`` fails.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise RuleError(f"rule file {path} cannot be read: {cause}", file=str(path)) from cause
    return parse_rules(text, str(path))


def parse_rules(text: str, source: str) -> tuple[Rule, ...]:
    """Parse rules; ``source`` names ``text`` in messages. If names are equal, the last rule counts, with a warning.

    Raises:
        RuleError: names file, line, rule, entry, key and the expected values.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as cause:
        raise RuleError(f"{source}: not valid YAML: {cause}", file=source) from cause
    if root is None:
        return ()
    where = _Where(source)
    if not isinstance(root, yaml.MappingNode):
        where.fail(root, "a rule file is a mapping of rule name to rule")
    rules: dict[str, Rule] = {}
    for key, node in root.value:
        name = _name(where, key, "rule name")
        if name in rules:
            logger.warning(
                "rule defined twice, the last definition is used: file=%s rule=%s lines=%d,%d",
                source, name, rules.pop(name).line, key.start_mark.line + 1,
            )  # fmt: skip
        rules[name] = _rule(_Where(source, name), name, key, node)
    return tuple(rules.values())


@dataclass(frozen=True, slots=True)
class _Where:
    """Location in a file, with which a message starts."""

    source: str
    rule: str = ""
    entry: str = ""
    key: str = ""

    def at(self, *, entry: str = "", key: str = "") -> "_Where":
        return _Where(self.source, self.rule, entry or self.entry, key)

    def fail(self, node: yaml.Node, problem: str) -> NoReturn:
        self.fail_line(node.start_mark.line + 1, problem)

    def fail_line(self, line: int, problem: str) -> NoReturn:
        words = (("rule", self.rule), ("entry", self.entry), ("key", self.key))
        place = ", ".join(f"{word} {value!r}" for word, value in words if value)
        raise RuleError(
            f"{self.source}, line {line}: {place + ': ' if place else ''}{problem}",
            file=self.source, line=line, rule=self.rule, entry=self.entry, key=self.key,
        )  # fmt: skip


def _rule(where: _Where, name: str, key: yaml.Node, node: yaml.Node) -> Rule:
    fields = _mapping(where, node, f"a rule is a mapping with the keys {', '.join(RULE_KEYS)}")
    for word, (key_node, _) in fields.items():
        if word not in RULE_KEYS:
            where.at(key=word).fail(key_node, f"unknown key; expected {', '.join(RULE_KEYS)}")
    for word in ("priority", "pattern"):
        if word not in fields:
            where.at(key=word).fail(key, f"the key is missing; a rule needs {word!r}")
    priority = _scalar(where.at(key="priority"), fields["priority"][1])
    if isinstance(priority, bool) or not isinstance(priority, int) or priority < 0:
        where.at(key="priority").fail(
            fields["priority"][1], f"{priority!r} is not valid; expected an integer from 0 up"
        )
    heuristic, parameters = _heuristic(
        where.at(key="heuristic"), fields["heuristic"][1] if "heuristic" in fields else None
    )
    pattern = fields["pattern"][1]
    entries = _mapping(where.at(key="pattern"), pattern, "a pattern is a mapping of entry name to entry")
    if not entries:
        where.at(key="pattern").fail(pattern, "the pattern is empty; it needs at least one entry")
    if len(entries) > MAX_ENTRIES:
        where.at(key="pattern").fail(pattern, f"{len(entries)} entries; expected up to {MAX_ENTRIES}")
    rule = Rule(
        name, priority, heuristic, parameters,
        tuple(_entry(where.at(entry=word), word, k, v) for word, (k, v) in entries.items()),
        where.source, key.start_mark.line + 1,
    )  # fmt: skip
    _check_pattern(where, rule)
    return rule


def _heuristic(where: _Where, node: yaml.Node | None) -> tuple[str | None, Mapping[str, Scalar]]:
    if node is None:
        return None, {}
    if isinstance(node, yaml.MappingNode):
        fields = _mapping(where, node, "")
        if "name" not in fields:
            where.fail(
                node, "the mapping has no 'name'; expected a heuristic's name, or {name: NAME, parameter: value}"
            )
        values = {word: _scalar(where.at(key=f"heuristic.{word}"), value) for word, (_, value) in fields.items()}
        name = values.pop("name")
    else:
        values, name = {}, _scalar(where, node)
    if not isinstance(name, str) or not name:
        where.fail(node, f"{name!r} is not valid; expected a heuristic's name, or {{name: NAME, parameter: value}}")
    return name, values


def _entry(where: _Where, name: str, key: yaml.Node, node: yaml.Node) -> RuleEntry:
    fields = _mapping(where, node, f"an entry is a mapping with the keys {', '.join(ENTRY_KEYS)}")
    settings: dict[str, Scalar] = {}
    for word, (key_node, value) in fields.items():
        if found := _SET.fullmatch(word):
            settings[found[1]] = _scalar(where.at(key=word), value)
        elif word not in ENTRY_KEYS[:-1]:
            where.at(key=word).fail(key_node, f"unknown key; expected {', '.join(ENTRY_KEYS)}")
    line = key.start_mark.line + 1
    if "match_first_option" in fields:
        if len(fields) > 1:
            extra = next(word for word in fields if word != "match_first_option")
            where.at(key=extra).fail(fields[extra][0], "an alternation entry has only the key 'match_first_option'")
        options = _words(where.at(key="match_first_option"), fields["match_first_option"][1], "entry names")
        return RuleEntry(name, (), (), True, True, options, {}, line)
    if "op_type" not in fields:
        where.at(key="op_type").fail(key, "the key is missing; an entry needs 'op_type' or 'match_first_option'")
    op_types = tuple(w.lower() for w in _words(where.at(key="op_type"), fields["op_type"][1], "operator names"))
    children: tuple[str, ...] = ()
    for word in ("child", "children"):
        if word in fields:
            if word == "child" and not isinstance(fields[word][1], yaml.ScalarNode):
                where.at(key=word).fail(fields[word][1], "expected one entry name; several go into 'children: [a, b]'")
            children += _words(where.at(key=word), fields[word][1], "entry names")
    if "child" in fields and "children" in fields:
        logger.warning(
            "both child and children, merged: file=%s line=%d rule=%s entry=%s", where.source, line, where.rule, name
        )
    flags = {word: _flag(where.at(key=word), fields, word) for word in ("required", "included")}
    return RuleEntry(
        name, op_types, tuple(dict.fromkeys(children)), flags["required"], flags["included"], (), settings, line
    )


def _check_pattern(where: _Where, rule: Rule) -> None:
    entries = {entry.name: entry for entry in rule.entries}
    for entry in rule.entries:
        for key, names in (("children", entry.children), ("match_first_option", entry.options)):
            for name in names:
                if name not in entries:
                    where.at(entry=entry.name, key=key).fail_line(
                        entry.line, f"names {name!r}, which is not in the pattern; expected {', '.join(entries)}"
                    )
    _check_acyclic(where, entries)
    if not any(entry.required and entry.included and not entry.options for entry in rule.entries):
        where.at(key="pattern").fail_line(
            rule.line, "no entry is both required and included; expected at least one, or nothing can be fused"
        )
    optional = [entry.name for entry in rule.entries if not entry.required]
    if len(optional) > MAX_OPTIONAL:
        where.at(key="required").fail_line(
            entries[optional[MAX_OPTIONAL]].line,
            f"{len(optional)} optional entries; expected up to {MAX_OPTIONAL} a rule",
        )


def _check_acyclic(where: _Where, entries: Mapping[str, RuleEntry]) -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            loop = " -> ".join((*path[path.index(name) :], name))
            where.at(entry=name, key="children").fail_line(
                entries[name].line, f"the entries form a circle, {loop}; expected an acyclic pattern"
            )
        if name not in done:
            for child in (*entries[name].children, *entries[name].options):
                visit(child, (*path, name))
            done.add(name)

    for name in entries:
        visit(name, ())


def _mapping(where: _Where, node: yaml.Node, legal: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        where.fail(node, legal)
    fields: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for key, value in node.value:
        word = _name(where, key, "key", free=True)
        if word in fields:
            where.at(key=word).fail(key, "appears twice; expected once")
        fields[word] = (key, value)
    return fields


def _name(where: _Where, node: yaml.Node, what: str, *, free: bool = False) -> str:
    text = node.value if isinstance(node, yaml.ScalarNode) else None
    if not isinstance(text, str) or not text or not (free or _NAME.fullmatch(text)):
        where.fail(
            node, f"{text!r} is not a valid {what}; expected letters, digits, '_', '-', '.', not starting with a digit"
        )
    return text


def _words(where: _Where, node: yaml.Node, what: str) -> tuple[str, ...]:
    nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
    words = [n.value.strip() if isinstance(n, yaml.ScalarNode) else "" for n in nodes]
    if not words or not all(words):
        where.fail(node, f"expected a name or a list of {what}")
    return tuple(dict.fromkeys(words))


def _flag(where: _Where, fields: Mapping[str, tuple[yaml.Node, yaml.Node]], word: str) -> bool:
    if word not in fields:
        return True
    value = _scalar(where, fields[word][1])
    if not isinstance(value, bool):
        where.fail(fields[word][1], f"{value!r} is not valid; expected true, false")
    return value


def _scalar(where: _Where, node: yaml.Node) -> Scalar:
    legal = "expected a single number, word, true or false"
    if not isinstance(node, yaml.ScalarNode):
        where.fail(node, legal)
    try:
        value = yaml.safe_load(yaml.serialize(node, Dumper=yaml.SafeDumper))
    except (yaml.YAMLError, ValueError) as cause:
        raise RuleError(
            f"{where.source}, line {node.start_mark.line + 1}: rule {where.rule!r}, key {where.key!r}: "
            f"{node.value!r} is not readable ({cause}); {legal}",
            file=where.source, line=node.start_mark.line + 1, rule=where.rule, entry=where.entry, key=where.key,
        ) from cause  # fmt: skip
    if not isinstance(value, bool | int | float | str):
        where.fail(node, f"{node.value!r} is not valid; {legal}")
    return value
