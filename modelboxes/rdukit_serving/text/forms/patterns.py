"""Regular expressions of JSON schemas (ECMA 262) in the terms of llguidance, which has no look-around. Pure.

An expression becomes one or more that must all match. ECMA, Python and llguidance read some classes differently (digits
and letters beyond ASCII, line ends); the result matches only what all of them accept.
"""

import re
from collections.abc import Iterator
from typing import Final

#: Any character; ``.`` in its common meaning; and short classes in ASCII, without brackets.
_ANY: Final = r"[\s\S]"
_DOT: Final = r"[^\n\r\u2028\u2029]"
_SHORT: Final = {"d": "0-9", "w": "A-Za-z0-9_", "s": r" \t\n\r\f\v"}
#: Smallest pieces: a class, a class without an end (up to the end), an escape, a character.
_ATOM: Final = re.compile(
    r"\[\^?\]?(?:\\.|[^\]\\])*\]|\[(?:\\.|[^\\])*\\?\Z"
    r"|\\(?:[pP]\{[^}]{0,64}\}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]+\}|.)|.",
    re.DOTALL,
)
_CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_LOOK_AHEAD: Final = ("(?=", "(?!")
_LOOK_BEHIND: Final = ("(?<=", "(?<!")
#: Characters that may stand behind a backslash.
_META: Final = frozenset(r"\.+*?()|[]{}^$-&~")
_ADVICE: Final = "write the expression without it, or use another form"
#: Deepest nesting of lookaheads.
_MAX_DEPTH: Final = 16


class UnkeptPattern(ValueError):
    """Regular expression that cannot be enforced during generation."""


def plain_patterns(pattern: str, depth: int = 0) -> list[str]:
    """Return expressions without look-around; a text must match all of them exactly if it must match ``pattern``.

    Args:
        depth: number of enclosing look-aheads.
    Raises:
        UnkeptPattern: it looks ahead elsewhere than at its beginning, for something too rich, or looks behind.
    """
    if depth > _MAX_DEPTH:
        raise UnkeptPattern(f"the expression looks ahead within {_MAX_DEPTH} others; {_ADVICE}")
    found: list[str] = []
    options = _split(pattern)
    if len(options) == 1 and pattern.startswith("^"):
        rest = pattern[1:]
        while rest.startswith(_LOOK_AHEAD):
            end = _group_end(rest)
            inner = rest[3:end].removeprefix("^")
            if rest.startswith("(?="):
                # The sought expression may itself begin with a look-ahead.
                found += plain_patterns("^" + inner if len(_split(inner)) == 1 else f"^(?:{inner})", depth + 1)
            else:
                for option in _split(inner):
                    found.append(_other_than(option))
            rest = rest[end + 1 :]
        options = ["^" + rest]
    if len(options) > 1:
        return [*found, f"^(?:{'|'.join(_whole(option) for option in options)})$"]
    return [*found, _plain(options[0])]


def _whole(option: str) -> str:
    """Return one of several options as an expression for the complete text."""
    before = "" if option.startswith("^") else f"{_ANY}*"
    ends = _ends(option)
    core = option.removeprefix("^")
    core = core[:-1] if ends else core
    return f"{before}(?:{_plain(core)}){'' if ends else f'{_ANY}*'}"


def _ends(pattern: str) -> bool:
    """Return whether the last piece is an end of the text."""
    atoms: list[str] = _ATOM.findall(pattern)
    return atoms[-1:] == ["$"]


def _plain(pattern: str) -> str:
    """Return an expression with its classes in ASCII; refuses look-around."""
    parts: list[str] = []
    for at, atom in _atoms(pattern):
        if atom == "(" and pattern.startswith((*_LOOK_AHEAD, *_LOOK_BEHIND), at):
            raise UnkeptPattern(
                f"the expression {pattern[:80]!r} looks ahead or behind with {pattern[at : at + 20]!r}; {_ADVICE}"
            )
        if atom == ".":
            parts.append(_DOT)
        elif len(atom) == 2 and atom[0] == "\\":
            parts.append(f"[{_SHORT[atom[1]]}]" if atom[1] in _SHORT else _escaped(atom))
        elif atom[0] == "[":
            if len(atom) < 2 or not _CLASS.fullmatch(atom):
                raise UnkeptPattern(f"the expression has a class without an end at {atom[:20]!r}; add the missing ]")
            parts.append(_plain_class(atom))
        else:
            parts.append(atom)
    return "".join(parts)


def _escaped(piece: str) -> str:
    """Return a piece without a backslash that says nothing, which llguidance refuses or reads otherwise."""
    return piece[1] if len(piece) == 2 and not piece[1].isalnum() and piece[1] not in _META else piece


def _plain_class(text: str) -> str:
    """Return a class with one meaning in all dialects: a negated one excludes letters and digits of all languages."""
    sign = "^" if text.startswith("[^") else ""
    inner = text[1 + len(sign) : -1]
    if not inner:
        return _ANY if sign else r"[^\s\S]"
    parts = []
    for piece in re.findall(r"\\.|.", inner, re.DOTALL):
        if piece[0] == "\\" and piece[1] in _SHORT and not sign:
            parts.append(_SHORT[piece[1]])
        else:
            parts.append("\\" + piece if piece in "[]&~" else _escaped(piece))
    return f"[{sign}{''.join(parts)}]"


def _atoms(pattern: str) -> Iterator[tuple[int, str]]:
    for match in _ATOM.finditer(pattern):
        yield match.start(), match[0]


def _split(pattern: str) -> list[str]:
    """Return the options of an expression that are not in a group."""
    parts, begin, depth = [], 0, 0
    for at, atom in _atoms(pattern):
        depth += {"(": 1, ")": -1}.get(atom, 0)
        if atom == "|" and depth == 0:
            parts.append(pattern[begin:at])
            begin = at + 1
    return [*parts, pattern[begin:]]


def _group_end(pattern: str) -> int:
    """Return the place of the parenthesis that closes the first one."""
    depth = 0
    for at, atom in _atoms(pattern):
        depth += {"(": 1, ")": -1}.get(atom, 0)
        if atom == ")" and depth == 0:
            return at
    raise UnkeptPattern(f"the expression {pattern[:80]!r} has a group without an end; add the missing )")


def _other_than(pattern: str) -> str:
    """Return an expression for the texts that do not begin with ``pattern``.

    Known: a repeated class up to the end, and a few single characters at the beginning, anywhere or at the end.
    """
    refused = UnkeptPattern(f"the expression has a negative lookahead for {pattern[:80]!r}; {_ADVICE}")
    atoms = [atom for _, atom in _atoms(pattern.removeprefix("^"))]
    ends = atoms[-1:] == ["$"]
    atoms = atoms[:-1] if ends else atoms
    if ends and len(atoms) == 2 and atoms[1] in {"*", "+"} and atoms[0] != ".":
        other = _inverse(atoms[0])
        return other if atoms[1] == "*" else f"^(?:{_ANY}*{other}{_ANY}*)?$"
    is_anywhere = atoms[:2] == [".", "*"]
    atoms = atoms[2:] if is_anywhere else atoms
    if not atoms or len(atoms) > 16 or any(atom in {*".^$*+?()|{}"} for atom in atoms):
        raise refused
    ones, others = [_plain(atom) for atom in atoms], [_inverse(atom) for atom in atoms]
    if not is_anywhere:
        tail: str | None = None
        for one, other in zip(reversed(ones), reversed(others), strict=True):
            # Nothing, another character here, or this one with another continuation; the complete expression is the
            # refused text.
            longer = (f"|{one}{_ANY}+" if ends else "") if tail is None else f"|{one}{tail}"
            tail = f"(?:|{other}{_ANY}*{longer})"
        return f"^{tail}$"
    if len(ones) == 1:
        return f"^(?:{_ANY}*{others[0]})?$" if ends else f"^{others[0]}*$"
    if len(ones) == 2 and not ends:
        if ones[0] == ones[1]:
            return f"^(?:{others[0]}|{ones[0]}{others[0]})*{ones[0]}?$"
        if all(_is_one_character(atom) for atom in atoms):
            neither = f"[^{_bare(atoms[0])}{_bare(atoms[1])}]"
            return f"^(?:{others[0]}|{ones[0]}+{neither})*{ones[0]}*$"
    raise refused


def _is_one_character(atom: str) -> bool:
    return len(atom) == 1 or (len(atom) == 2 and not atom[1].isalnum())


def _bare(atom: str) -> str:
    return _escaped(atom) if len(atom) == 2 else "\\" + atom if atom in _META else atom


def _inverse(atom: str) -> str:
    """Return the class of all characters except those of a piece.

    Raises:
        UnkeptPattern: the piece is neither a class nor a character.
    """
    if atom.startswith("[^"):
        return _plain_class("[" + atom[2:])
    if atom.startswith("[") and len(atom) > 1:
        return _plain_class("[^" + atom[1:])
    if len(atom) == 2 and atom[1] in "dws":
        return f"[^\\{atom[1]}]"
    if _is_one_character(atom) and atom not in {*".^$*+?()|"}:
        return f"[^{_bare(atom)}]"
    raise UnkeptPattern(f"the expression has a negative lookahead for {atom!r}; {_ADVICE}")
