"""The fusion rules that come with the compiler, one file per family, and how to load a user's."""

from functools import cache
from importlib.resources import files
from pathlib import Path

from rdukit_compiler.patterns.syntax import Rule, parse_rules, read_rules


@cache
def load_default_rules() -> tuple[Rule, ...]:
    """Load the built-in rules of all families, files in alphabetical order, rules in file order."""
    folder = files("rdukit_compiler.rules")
    found = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    return tuple(rule for f in found for rule in parse_rules(f.read_text(encoding="utf-8"), f.name))


def load_rules(path: Path | str) -> tuple[Rule, ...]:
    """Load a user's rules. To combine them with the defaults, put them first: at equal priority, the earlier rule
    applies first.

    Raises:
        RuleError: the file cannot be read or breaks the syntax; names file, line, rule, entry, key and the expected
            values.
    """
    return read_rules(Path(path))
