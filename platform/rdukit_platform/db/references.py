"""References of a pipeline's steps to each other, as their rows hold them until the steps have ended (pure).

``@step.slot`` is what a step makes. Of a step that has become several jobs, its members, ``@step[2].slot`` is one of
them, ``@step[*].slot`` each of them (the step that says so becomes a job for each), and ``@step[max: METRIC].slot``, or
``min:``, the one whose result has the most, or the least, of a figure.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rdukit.errors import InvalidArgument

_REFERENCE: Final = re.compile(
    r"@(?P<step>[a-z][a-z0-9_-]*)"
    r"(\[(?P<member>\d{1,3}|\*|(?P<order>max|min): ?(?P<metric>[A-Za-z0-9_./-]{1,64}))\])?"
    r"\.(?P<slot>[A-Za-z0-9_-]+)"
)
_MEMBER: Final = re.compile(r"(?P<step>[a-z][a-z0-9_-]*)\[(?P<number>\d+)\]")
_LEGAL: Final = "@step.slot, such as @train.checkpoint, @step[0].slot, @step[*].slot or @step[max: METRIC].slot"


@dataclass(frozen=True, slots=True)
class StepReference:
    """Reference to what a step, or a member of one, makes in ``slot``.

    ``metric`` chooses among all members of ``step``: the one with the most of it, or with ``is_least`` the least.
    """

    step: str
    slot: str
    metric: str | None = None
    is_least: bool = False
    #: All members, each for a job of its own.
    is_each: bool = False

    def candidates(self, steps: Iterable[str]) -> list[str]:
        """Return which of ``steps`` it may come from, in their order."""
        is_any = self.metric is not None
        return [name for name in steps if name == self.step or (is_any and group_of(name) == self.step)]


def read_reference(text: str) -> StepReference | None:
    """Read a reference; ``None`` for an artifact id.

    Raises:
        InvalidArgument: it starts with ``@`` but is no reference.
    """
    if not text.startswith("@"):
        return None
    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise InvalidArgument(f"{text[:200]!r} is not a reference; legal: {_LEGAL}")
    step, slot, member = found["step"], found["slot"], found["member"]
    if found["metric"] is not None:
        return StepReference(step, slot, found["metric"], found["order"] == "min")
    if member == "*":
        return StepReference(step, slot, is_each=True)
    return StepReference(step if member is None else f"{step}[{int(member)}]", slot)


def group_of(name: str) -> str:
    """Return the step that a member belongs to; of a step that has not fanned out its own name."""
    found = _MEMBER.fullmatch(name)
    return name if found is None else found["step"]


def sources_of(references: Mapping[str, str]) -> list[str]:
    """Return which steps a step comes after, as its references name them: ``build``, ``train[max: accuracy]``."""
    return list(dict.fromkeys(text[1:].rpartition(".")[0] for text in references.values()))
