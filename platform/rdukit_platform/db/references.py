"""References of a pipeline's steps to each other, stored in their rows until the steps have ended (pure).

``@step.slot`` is an output of a step. For a step with several jobs, its members, ``@step[2].slot`` is an output of one
member. ``@step[*].slot`` means each member: the referring step becomes a job per member. ``@step[max: METRIC].slot``
(or ``min:``) chooses the member with the highest (lowest) figure.
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
    """Reference to the output ``slot`` of a step, or of a member of one.

    ``metric`` chooses the member of ``step`` with the highest value, or with ``is_least`` the lowest.
    """

    step: str
    slot: str
    metric: str | None = None
    is_least: bool = False
    #: Whether it means all members, each for a job of its own.
    is_each: bool = False

    def candidates(self, steps: Iterable[str]) -> list[str]:
        """Return the steps that the reference may choose, in their order."""
        is_any = self.metric is not None
        return [name for name in steps if name == self.step or (is_any and group_of(name) == self.step)]


def read_reference(text: str) -> StepReference | None:
    """Read a reference; ``None`` for an artifact id.

    Raises:
        InvalidArgument: it starts with ``@`` but is not a reference.
    """
    if not text.startswith("@"):
        return None
    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise InvalidArgument(f"{text[:200]!r} is not a reference; expected {_LEGAL}")
    step, slot, member = found["step"], found["slot"], found["member"]
    if found["metric"] is not None:
        return StepReference(step, slot, found["metric"], found["order"] == "min")
    if member == "*":
        return StepReference(step, slot, is_each=True)
    return StepReference(step if member is None else f"{step}[{int(member)}]", slot)


def group_of(name: str) -> str:
    """Return the step that a member belongs to; a step without fan-out is its own group."""
    found = _MEMBER.fullmatch(name)
    return name if found is None else found["step"]


def sources_of(references: Mapping[str, str]) -> list[str]:
    """Return the source steps of references, as named there: ``build``, ``train[max: accuracy]``."""
    return list(dict.fromkeys(text[1:].rpartition(".")[0] for text in references.values()))
