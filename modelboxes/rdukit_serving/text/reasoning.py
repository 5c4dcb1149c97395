"""Thinking in a model's text: the marks of model families, and the separation from the answer. Pure.

Source: the models' published chat templates; vLLM's reasoning parsers for which family writes what.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rdukit_serving.text.token_bytes import length_of_beginning
from rdukit_serving.text.tool_calls import CallReader, ToolCall


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """Texts that enclose a family's thoughts; the family's templates contain the second."""

    begin: str
    end: str


MARKS: Final = (ThinkingMarks("<think>", "</think>"), ThinkingMarks("[THINK]", "[/THINK]"))


@dataclass(frozen=True, slots=True)
class Thinking:
    """Thinking of a text: the marks, and whether the prompt already begins or ends it."""

    marks: ThinkingMarks
    has_begun: bool = False
    has_ended: bool = False


def find_thinking(template: str, prompt: str) -> Thinking | None:
    """Return the thinking of a model with this chat template after a prompt; None: its family does not think."""
    marks = next((marks for marks in MARKS if marks.end in template), None)
    if marks is None:
        return None
    end = prompt.rstrip()
    return Thinking(marks, has_begun=end.endswith(marks.begin), has_ended=end.endswith(marks.end))


class ThinkingReader:
    """Reader of one text, piece by piece, which separates thoughts and answer.

    Line ends next to the marks belong to neither.
    """

    def __init__(self, thinking: Thinking) -> None:
        self._marks = thinking.marks
        #: Whether the text is within a thought; and text that may begin a mark, or line ends before a possible mark.
        self.is_inside = thinking.has_begun
        self._held = ""
        #: Whether line ends at the beginning of the next text are dropped.
        self._drops = thinking.has_begun

    def push(self, text: str, is_last: bool = False) -> tuple[str, str]:
        """Read the next piece; return the thoughts and the answer up to now."""
        self._held += text
        thought, said = "", ""
        while True:
            mark = self._marks.end if self.is_inside else self._marks.begin
            before, found, after = self._held.partition(mark)
            if not found:
                break
            piece = self._dropped(before.rstrip("\n") if self.is_inside else before)
            thought, said = (thought + piece, said) if self.is_inside else (thought, said + piece)
            self.is_inside, self._drops, self._held = not self.is_inside, True, after
        kept = 0 if is_last else length_of_beginning(self._held, [mark])
        piece = self._held[: len(self._held) - kept]
        if self.is_inside and not is_last:
            piece = piece.rstrip("\n")
        self._held = "" if is_last else self._held[len(piece) :]
        piece = self._dropped(piece)
        return (thought + piece, said) if self.is_inside else (thought, said + piece)

    def _dropped(self, piece: str) -> str:
        if self._drops:
            piece = piece.lstrip("\n")
            self._drops = not piece
        return piece


@dataclass(slots=True)
class AnswerReader:
    """Reader of one text: thoughts, answer, and calls of tools in either.

    ``called``: reader of calls in the answer. ``thought_calls``: reader of calls in the thoughts.
    """

    thinking: ThinkingReader | None = None
    said_calls: CallReader | None = None
    thought_calls: CallReader | None = None
    most: int | None = None
    #: Tokens of thoughts.
    thought_tokens: int = 0
    calls: list[ToolCall] = field(default_factory=list)

    def push(self, text: str, is_last: bool = False) -> tuple[str, str, Sequence[ToolCall]]:
        """Read the next piece; return thoughts, answer, and complete calls."""
        thought, said = "", text
        if self.thinking is not None:
            self.thought_tokens += self.thinking.is_inside and not is_last
            thought, said = self.thinking.push(text, is_last)
        found: list[ToolCall] = []
        if self.thought_calls is not None:
            thought, new = self.thought_calls.push(thought)
            found += new
            thought += self.thought_calls.finish() if is_last else ""
        if self.said_calls is not None:
            said, new = self.said_calls.push(said)
            found += new
            said += self.said_calls.finish() if is_last else ""
        found = found[: None if self.most is None else max(0, self.most - len(self.calls))]
        self.calls += found
        return thought, said, found
