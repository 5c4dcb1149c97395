"""Interface of heuristics, and their registry."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Protocol

from rdukit.hardware import ChipSpec
from rdukit_compiler.ir import ModelGraph, Operator
from rdukit_compiler.patterns.syntax import Scalar

#: Name of the heuristic for groups that no other heuristic accepts.
DEFAULT: Final = "default"

#: Decisions, ready for JSON; ``heuristics.default.common_decisions`` has the common keys.
Decisions = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class HeuristicRequest:
    """A group of operators, in graph order, to be mapped to ``tiles`` tiles of ``chip``.

    ``parameters`` are those of the rule's heuristic, ``settings`` those of its entries' ``set`` keys by operator.
    """

    graph: ModelGraph
    operators: tuple[Operator, ...]
    chip: ChipSpec
    tiles: int
    inference: bool = False
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)


class Heuristic(Protocol):
    """A strategy. Its methods are pure functions of the request."""

    #: Legal names of rule parameters; others are ignored with a warning.
    parameters: frozenset[str]

    def refuse(self, request: HeuristicRequest) -> str | None:
        """Return why the group does not meet the requirements, for people; None when it does."""
        ...

    def split(self, request: HeuristicRequest) -> Sequence[tuple[Operator, ...]]:
        """Cut the group into sections, in graph order.

        Raises:
            DoesNotFit: a single operator exceeds what this heuristic lets a section use.
        """
        ...

    def decide(self, request: HeuristicRequest) -> Decisions:
        """Decide sharding, parallel factors and tiling of one section that ``split`` made."""
        ...


_REGISTER: dict[str, Heuristic] = {}
#: Mapping that ``@heuristic`` fills: the registry, or another one while a plug-in file runs.
_target: ContextVar[dict[str, Heuristic]] = ContextVar("heuristic target", default=_REGISTER)


def heuristic(name: str) -> Callable[[type], type]:
    """Register a class under the name that rules use."""

    def register(cls: type) -> type:
        if name in _target.get():
            raise ValueError(f"two heuristics are called {name!r}")
        _target.get()[name] = cls()
        return cls

    return register


@contextlib.contextmanager
def registering() -> Iterator[dict[str, Heuristic]]:
    """Make ``@heuristic`` fill this mapping instead of the registry while the block lasts."""
    made: dict[str, Heuristic] = {}
    token = _target.set(made)
    try:
        yield made
    finally:
        _target.reset(token)


def find_heuristic(name: str) -> Heuristic | None:
    """Find the heuristic called ``name`` by rules; None when there is none."""
    return _REGISTER.get(name)


def heuristic_names() -> tuple[str, ...]:
    """Return the names of all heuristics."""
    return tuple(sorted(_REGISTER))
