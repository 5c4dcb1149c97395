"""A chat of the playground as it is generated: events of OpenAI's stream in, lines of JSON for the page out (pure).

Answers come from boxes, perhaps a tenant's own: none is trusted to have the right form.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import orjson

from rdukit.strict_json import find_number
from rdukit_platform.console.playground import MAX_TOKENS_SHOWN, show_token

#: Most bytes of an event, and of a whole answer, that are read.
MAX_EVENT: Final = 1 << 20
_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"
#: Figures of ``usage`` that the page shows, by their names there.
_COUNTS: Final = ("prompt_tokens", "completion_tokens")


class EventReader:
    """Splits a stream's bytes into the JSON objects of its events, which may be cut anywhere."""

    def __init__(self) -> None:
        self._rest = b""

    def read(self, block: bytes) -> list[dict[str, Any]]:
        """Return the objects of the events that are complete; others than objects are left out.

        Raises:
            ValueError: an event has more than ``MAX_EVENT`` bytes.
        """
        *lines, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > MAX_EVENT:
            raise ValueError(f"an event of the stream has more than {MAX_EVENT} bytes")
        found = []
        for line in lines:
            text = line.strip().removeprefix(_DATA).strip()
            if not line.startswith(_DATA) or text == _DONE:
                continue
            try:
                value = orjson.loads(text)
            except ValueError:
                continue
            if isinstance(value, dict):
                found.append(value)
        return found


def show_event(event: Mapping[str, Any], shown: int) -> dict[str, Any]:
    """Return the line for an event; an empty object if the page need not know it.

    ``tokens`` have ``text``, ``shade`` and ``words`` as ``ShownToken``; a plain ``text`` has none. ``finish``: reason
    for the answer's end; ``usage``: its figures; ``error``: the error's text.

    Args:
        shown: number of tokens that the page already has; beyond ``MAX_TOKENS_SHOWN`` they come as text.
    """
    if error := event.get("error"):
        words = error.get("message") if isinstance(error, dict) else error
        return {"error": str(words)[:500]}
    told: dict[str, Any] = {}
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else None
    tokens = choice.get("logprobs")
    content = tokens.get("content") if isinstance(tokens, dict) else None
    if isinstance(content, list) and content and shown + len(content) <= MAX_TOKENS_SHOWN:
        told["tokens"] = [asdict(show_token(each)) for each in content if isinstance(each, dict)]
    if isinstance(text, str) and text:
        told["text"] = text
    if isinstance(choice.get("finish_reason"), str):
        told["finish"] = choice["finish_reason"][:40]
    if isinstance(usage := event.get("usage"), dict):
        told["usage"] = _figures(usage)
    return told


def _figures(usage: Mapping[str, Any]) -> dict[str, float]:
    """Return the known figures of an answer: counts of tokens, seconds to the first one, tokens a second."""
    details = usage.get("prompt_tokens_details")
    known: dict[str, object] = {key: usage.get(key) for key in _COUNTS}
    known["cached_tokens"] = details.get("cached_tokens") if isinstance(details, dict) else None
    known["first_s"] = usage.get("time_to_first_token")
    known["rate"] = usage.get("completion_tokens_after_first_per_sec")
    numbers = {key: find_number(value) for key, value in known.items()}
    return {key: value for key, value in numbers.items() if value is not None and 0 <= value < math.inf}
