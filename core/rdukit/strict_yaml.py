"""Parse YAML text into plain values with their lines. Pure.

Scalars are read by YAML 1.2's core schema, so ``1e-4`` is a number. What YAML 1.1 and 1.2 read differently (``yes``,
``010``, ``1:30``) is a fault, as are duplicate keys, tags and the character NUL. Anchors are accepted within
limits; merge keys only if ``read_documents`` allows them.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

Path = tuple[str | int, ...]

#: Maximum characters of a file, values in it (anchors expanded), and levels.
MAX_CHARACTERS: Final = 1 << 20
MAX_VALUES: Final = 50_000
MAX_DEPTH: Final = 40

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_BASED: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL: Final = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None, "~": None, "": None}
_TRUTH_OF_1_1: Final = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_STRING_TAG: Final = "tag:yaml.org,2002:str"


@dataclass(frozen=True, slots=True, order=True)
class TextPosition:
    """A position in the text; line and column count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A fault at a key. ``line`` and ``column`` count from 1."""

    mark: TextPosition
    path: Path
    message: str

    @property
    def key(self) -> str:
        """``parameters.0.legal.enum``; ``file`` for the whole."""
        return ".".join(str(part) for part in self.path) or "file"


@dataclass(slots=True)
class MarkedYaml:
    """The value, the position of each of its parts, and the faults of the YAML itself."""

    value: object = None
    #: Path → position of the key, or of the value if it has no key.
    marks: dict[Path, TextPosition] = field(default_factory=dict)
    faults: list[Diagnostic] = field(default_factory=list)

    def mark_of(self, path: Path) -> TextPosition:
        """Return the position of ``path``, or of its nearest existing parent."""
        while path and path not in self.marks:
            path = path[:-1]
        return self.marks.get(path, TextPosition(1, 1))


class _TooMuch(Exception):
    """A limit is exceeded; reading stops."""


def read_yaml(text: str) -> MarkedYaml:
    """Read one document. Never raises: errors are in ``faults``."""
    return read_documents(text, most=1)[0]


def read_documents(text: str, *, most: int, merges: bool = False) -> list[MarkedYaml]:
    """Read a file's documents, at least one. Never raises: errors are in the ``faults`` of the last one.

    Args:
        most: maximum number of documents.
        merges: whether ``<<: *anchor`` adds missing keys to a mapping.
    """
    found = [MarkedYaml()]
    if len(text) > MAX_CHARACTERS:
        found[0].faults.append(
            Diagnostic(TextPosition(1, 1), (), f"{len(text)} characters; expected at most {MAX_CHARACTERS}")
        )
        return found
    try:
        _Reader(yaml.parse(text, Loader=_LOADER), found, most, merges).read()
    except yaml.MarkedYAMLError as cause:
        place = cause.problem_mark or cause.context_mark
        mark = TextPosition(place.line + 1, place.column + 1) if place is not None else TextPosition(1, 1)
        words = ", ".join(part for part in (cause.context, cause.problem) if part)
        line = text.splitlines()[place.line : place.line + 1] if place is not None else []
        tab = "; YAML indents with spaces, not tabs" if line and line[0].lstrip(" ").startswith("\t") else ""
        found[-1].faults.append(Diagnostic(mark, (), f"not valid YAML: {words}{tab}"))
    except yaml.YAMLError as cause:
        found[-1].faults.append(Diagnostic(TextPosition(1, 1), (), f"not valid YAML: {cause}"))
    except _TooMuch:
        pass
    return found


class _Reader:
    """Builds values from the parser's events."""

    def __init__(self, events: Iterator[Any], documents: list[MarkedYaml], most: int, merges: bool) -> None:
        self._events = events
        self._documents, self._most, self._merges = documents, most, merges
        #: The current document.
        self._found = documents[0]
        #: Finished anchors with the number of values of each.
        self._anchors: dict[str, tuple[object, int]] = {}
        self._count = 0

    def read(self) -> None:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if () in self._found.marks:
                    if len(self._documents) == self._most:
                        words = "a second" if self._most == 1 else "another"
                        self._fault(event, (), f"{words} document starts here; expected at most {self._most}")
                        raise _TooMuch
                    self._found, self._anchors = MarkedYaml(), {}
                    self._documents.append(self._found)
                first = next(self._events)
                self._found.marks[()] = _mark(first)
                self._found.value = self._value(first, ())

    def _value(self, event: Any, path: Path) -> object:
        before = self._count
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        self._add(event, path, 1)
        tag = event.tag
        if tag not in {None, "!"} and not (tag == _STRING_TAG and isinstance(event, yaml.ScalarEvent)):
            self._fault(event, path, f"tag {tag!r} is not valid; expected plain values without tags")
        value: object
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, path)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(path)
        else:
            value = self._mapping(path)
        if event.anchor:
            self._anchors[event.anchor] = (value, self._count - before)
        return value

    def _alias(self, event: Any, path: Path) -> object:
        if event.anchor not in self._anchors:
            self._fault(event, path, f"**{event.anchor} refers to no anchor above; define the anchor first")
            return None
        value, count = self._anchors[event.anchor]
        self._add(event, path, count)
        return value

    def _sequence(self, path: Path) -> list[object]:
        values: list[object] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            inner = (*path, len(values))
            self._found.marks[inner] = _mark(event)
            values.append(self._value(event, inner))
        return values

    def _mapping(self, path: Path) -> dict[str, object]:
        values: dict[str, object] = {}
        merged: dict[str, object] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            mark = _mark(event)
            if self._merges and _is_merge(event):
                merged |= self._merge(next(self._events), path)
                continue
            key = self._key(event, path)
            inner = (*path, key if key is not None else "?")
            if key in values:
                first = self._found.marks[inner].line
                self._found.faults.append(Diagnostic(mark, inner, f"duplicate key; the first is in line {first}"))
                self._value(next(self._events), (*inner, "duplicate"))
                continue
            self._found.marks.setdefault(inner, mark)
            value = self._value(next(self._events), inner)
            if key is not None:
                values[key] = value
        return merged | values

    def _merge(self, event: Any, path: Path) -> dict[str, object]:
        value = self._value(event, (*path, "<<"))
        if isinstance(value, dict):
            return value
        self._fault(event, (*path, "<<"), "a merge key takes the keys of one mapping; expected *anchor of a mapping")
        return {}

    def _key(self, event: Any, path: Path) -> str | None:
        """Return the key, or None after a fault."""
        if not isinstance(event, yaml.ScalarEvent):
            self._value(event, (*path, "?"))
            self._fault(event, path, "a key must be a plain word")
            return None
        self._add(event, path, 1)
        key: str = event.value
        if _is_merge(event):
            self._fault(event, (*path, key), "merge keys are not valid; write out the keys")
            return None
        # A number or truth value as a key (``on:``) is read as the written word.
        return key

    def _scalar(self, event: Any, path: Path) -> object:
        text: str = event.value
        if not event.implicit[0] or event.tag == _STRING_TAG:
            if "\0" in text:
                self._fault(event, path, "a text has the character NUL; leave it out")
            return text
        if text in _WORDS or text in {"True", "TRUE", "False", "FALSE", "Null", "NULL"}:
            return _WORDS[text.lower()]
        if _INT.fullmatch(text):
            return self._int(event, path, text)
        if _BASED.fullmatch(text):
            return int(text, 0)
        if text.lower() in _SPECIAL:
            return _SPECIAL[text.lower()]
        meaning = _other_meaning(text)
        if meaning is not None:
            self._fault(event, path, f'{text} is {meaning}, or "{text}" for text')
            return text
        return float(text) if _FLOAT.fullmatch(text) else text

    def _int(self, event: Any, path: Path, text: str) -> int:
        if len(text) > 30:
            self._fault(event, path, "an integer of more than 30 digits is not valid")
            return 0
        return int(text)

    def _add(self, event: Any, path: Path, count: int) -> None:
        self._count += count
        if self._count > MAX_VALUES:
            self._fault(event, path, f"more than {MAX_VALUES} values, anchors written out; expected fewer")
            raise _TooMuch
        if len(path) > MAX_DEPTH:
            self._fault(event, path[:3], f"nested more than {MAX_DEPTH} levels deep; expected fewer")
            raise _TooMuch

    def _fault(self, event: Any, path: Path, message: str) -> None:
        self._found.faults.append(Diagnostic(_mark(event), path, message))


def _other_meaning(text: str) -> str | None:
    """Describe how YAML 1.1 and 1.2 read a plain ``text`` differently, and what to write; None if it does not."""
    word = _TRUTH_OF_1_1.get(text.lower())
    if word is not None and text in {text.lower(), text.upper(), text.capitalize()}:
        return f"a truth value to some readers; write {word}"
    if re.fullmatch(r"[-+]?0[0-9]+", text):
        plain = text.lstrip("+-0") or "0"
        return f"octal to some readers; write {plain}"
    if re.fullmatch(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?", text):
        return "a number to the base 60 to some readers; write the number that is meant"
    if "_" in text and re.fullmatch(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?", text):
        return f"a number to some readers; write {text.replace('_', '')}"
    return None


def _is_merge(event: Any) -> bool:
    return isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]


def _mark(event: Any) -> TextPosition:
    return TextPosition(event.start_mark.line + 1, event.start_mark.column + 1)
