"""Comparisons as values: questions, rows, options, and the registry. No torch here.

A question is a module of this package with one function marked ``@comparison("name")`` and a line in ``QUESTIONS``::

    @comparison("training_step")
    def compare(options: BenchOptions) -> Iterator[ComparisonRow]:
        ...
        yield row          # as soon as it is known: a crash or Ctrl-C loses only what was not yielded

A comparison that takes long to its next row also yields ``BenchProgress``.

Rows hold a figure of ours and one of a peer measured in the same run; only their ratio means anything.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from typing import Any, Final

from rdukit.errors import InvalidArgument, suggest

#: What to say in a row's note when a peer's package is missing.
PEER_MISSING: Final = "peer not installed: pip install rdukit[bench]"

#: Each comparison with the question that it answers; one line per module of this package.
QUESTIONS: Final[dict[str, str]] = {
    "training_step": "How long is one training step?",
    "zoo_step": "How long is one training step of the vision and science models of the zoo?",
    "first_call": "How soon is the first result of a fresh process on a cached PEF?",
    "threads": "How much faster are two threads than one?",
    "training_memory": "How much memory does training need?",
    "llama": "How fast does a Llama of 110 million parameters read a prompt and generate?",
    "o1_compile": "How long does O1 take to compile GPT-2?",
    "small_compile": "How long does the first compile of a small training model take?",
    "section_call": "How much does the call of a section cost?",
    "vision": "How fast are a vision transformer and a U-Net?",
}


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """A comparison of ours with a peer.

    Values are medians in ``unit`` and smaller is better. ``ratio`` is the peer's over ours: above 1 ours is better.
    ``bar`` is the least ratio wanted; None where the row only informs. Without a peer's figure (not installed, or it
    failed) ``peer_value`` and ``ratio`` are None and ``note`` says why. A bar that is an absolute limit has the limit
    as its peer: ``peer="limit", peer_value=2.0, bar=1.0``. ``details``: variant → its median, best, spread.
    """

    question: str
    case: str
    ours: str
    peer: str
    ours_value: float | None
    peer_value: float | None
    unit: str
    ratio: float | None
    bar: float | None = None
    samples: int = 0
    note: str = ""
    details: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def is_met(self) -> bool | None:
        """True if the bar is reached; None if there is no bar or no ratio."""
        return None if self.bar is None or self.ratio is None else self.ratio >= self.bar

    def body(self) -> dict[str, Any]:
        """Return the row as JSON values, with ``met``."""
        return {**asdict(self), "met": self.is_met}

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> "ComparisonRow":
        """Rebuild the row from ``body()``."""
        return cls(**{f.name: body[f.name] for f in fields(cls) if f.name in body})


@dataclass(frozen=True, slots=True)
class BenchProgress:
    """Progress of a comparison between rows: how many of a case's samples there are, each a process of seconds."""

    case: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Options of measuring. ``quick`` is for trying whether it works: 3 rounds, and no case that takes minutes.

    ``rounds``: samples of each variant, taken in turn. ``sample_s``: a sample repeats a call until it has lasted about
    so long. ``only``: run just the cases whose name contains this. ``folder``: scratch, kept warm between comparisons.
    """

    rounds: int = 9
    threads: int = 1
    quick: bool = False
    only: str | None = None
    sample_s: float = 0.05
    folder: str = ""

    def wants(self, case: str) -> bool:
        """Return whether ``only`` selects this case."""
        return self.only is None or self.only in case


Comparison = Callable[[BenchOptions], Iterable[ComparisonRow | BenchProgress]]

#: Filled by ``@comparison`` when a module is imported; ask ``get_comparison`` instead of looking here.
COMPARISONS: dict[str, Comparison] = {}


def comparison(name: str) -> Callable[[Comparison], Comparison]:
    """Register the decorated function as the comparison ``name``, which is its module's name too."""

    def register(compare: Comparison) -> Comparison:
        COMPARISONS[name] = compare
        return compare

    return register


def check_name(name: str) -> str:
    """Return the name, if there is such a comparison.

    Raises:
        InvalidArgument: there is none; the message lists the names.
    """
    if name not in QUESTIONS:
        raise InvalidArgument(
            f"there is no comparison {name!r}; expected {', '.join(QUESTIONS)}.{suggest(name, QUESTIONS)}"
        )
    return name


def get_comparison(name: str) -> Comparison:
    """Return the function behind ``name``; imports only that module.

    Raises:
        InvalidArgument: no such comparison.
    """
    check_name(name)
    import_module(f"rdukit_bench.comparisons.{name}")
    return COMPARISONS[name]
