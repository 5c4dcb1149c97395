"""Prompts that are too long for one packet to the device process, cut into parts and put together again. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

#: Characters or tokens of a part. As JSON a character has up to 12 bytes and a token 12, and what a request has beside
#: its prompt (stop sequences, biases) must fit into the packet, too.
PART: Final = 1024

Prompt = str | Sequence[int]


def cut(prompt: Prompt) -> Iterator[tuple[int, Prompt]]:
    """(place, part) in order; the first is at 0."""
    for at in range(0, len(prompt), PART):
        part = prompt[at : at + PART]
        yield at, part if isinstance(part, str) else list(part)


class LongPrompt:
    """A prompt whose parts come one after another."""

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def add(self, at: int, part: Prompt) -> None:
        """With the part at 0 another prompt begins: the caller of the one before went away."""
        if at == 0:
            self._parts = []
        self._parts.append(part)

    def take(self) -> Prompt:
        """All of it; nothing is left."""
        parts, self._parts = self._parts, []
        if parts and isinstance(parts[0], str):
            return "".join(parts)
        return [token for part in parts for token in part]
