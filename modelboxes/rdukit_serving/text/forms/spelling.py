"""Texts of composed forms, spelled as literals and tokens of a tokenizer. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Final

_MARKED: Final = re.compile(r'@("(?:\\.|[^"\\])*")')


def spell(grammar: str, tokens: Mapping[str, int]) -> str:
    """Return parts as Lark for a tokenizer with the added ``tokens``, by their texts."""
    lines = []
    for line in grammar.split("\n"):
        name, _, rest = line.partition(": ")
        if rest.startswith("@until "):
            text = json.loads(rest.removeprefix("@until "))
            number = tokens.get(text)
            lines.append(
                f"{name}[suffix={_quoted(text)}]: /(?s:.*)/" if number is None else f"{name}: /(?s:.*)/ <[{number}]>"
            )
        elif name in {"start", "opened"}:
            lines.append(_MARKED.sub(lambda found: _spelled(json.loads(found[1]), tokens), line))
        else:
            lines.append(line)
    return "\n".join(lines)


def _spelled(text: str, tokens: Mapping[str, int]) -> str:
    """Return a text as literals and tokens."""
    known = sorted((token for token in tokens if token and token in text), key=len, reverse=True)
    if not known:
        return _quoted(text)
    pieces = re.split(f"({'|'.join(map(re.escape, known))})", text)
    return " ".join(f"<[{tokens[piece]}]>" if piece in tokens else _quoted(piece) for piece in pieces if piece)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
