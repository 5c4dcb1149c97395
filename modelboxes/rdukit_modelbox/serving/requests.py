"""An inference request and its answer, as the wires hand them over: names, shapes and raw bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class GivenTensor(NamedTuple):
    """A tensor on the wire: its bytes are little-endian and row-major."""

    name: str
    datatype: str
    shape: Sequence[int]
    data: bytes | memoryview


@dataclass(slots=True)
class InferRequest:
    """One request. ``outputs`` restricts the answer; empty means all."""

    inputs: Sequence[GivenTensor]
    outputs: Sequence[str] = ()
    id: str = ""
    #: Output -> how many of its likeliest classes are wanted instead of its numbers.
    classes: Mapping[str, int] | None = None


class Timing(NamedTuple):
    """Where a request's time went, in microseconds."""

    queue: int
    copy_in: int
    compute: int
    copy_out: int


class InferAnswer(NamedTuple):
    """Outputs in the order asked for, as bytes of ``rows`` rows each."""

    rows: int
    outputs: Sequence[bytes]
    names: Sequence[str]
    timing: Timing


class Reply(Protocol):
    """Whoever waits for an answer: an ``asyncio.Future``, or what writes the answer at once."""

    def done(self) -> bool:
        """It is answered, or nobody waits any more."""

    def set_result(self, answer: InferAnswer, /) -> None:
        """The answer."""

    def set_exception(self, error: Exception, /) -> None:
        """Why there is none."""
