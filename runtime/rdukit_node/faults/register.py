"""The register of fault classes."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from rdukit.hardware import NodeSpec
from rdukit_node.faults.enums import Action, FaultSeverity
from rdukit_node.faults.model import Policy
from rdukit_node.inventory import ComponentKind

#: Function that samples the data of one error: the hardware's report in addition to type and component.
SampleData = Callable[[random.Random, NodeSpec], dict[str, object]]


class ImpactScope(StrEnum):
    """Leases that an error of a class interrupts."""

    NOBODY = "nobody"
    #: The holder of the tile.
    TILE = "the tile's owner"
    #: An application with tiles on the RDU, chosen by seed: an address belongs to one application.
    MEMORY = "one owner of the RDU's memory"
    RDU = "everybody on the RDU"


class Suspect(StrEnum):
    """A suspected component, by its place relative to the component with the error."""

    SELF = "self"
    CHANNEL = "channel"
    RDU = "rdu"
    XRDU = "xrdu"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class FaultClass:
    """A kind of hardware event: its signs, its meaning, and the node's action.

    ``fault_type`` is empty for errors that never become a fault. ``count``, ``window_s``, ``action`` and ``severity``
    are the policy that a node starts with.
    """

    name: str
    part: str
    kind: ComponentKind
    error_type: str
    error_desc: str
    cause: str
    signs: str
    effect: str
    suggestion: str
    sample: SampleData
    severity: FaultSeverity = FaultSeverity.MINOR
    fault_type: str = ""
    fault_desc: str = ""
    count: int = 1
    window_s: int = 86_400
    action: Action = Action.NONE
    impact: ImpactScope = ImpactScope.NOBODY
    #: Code of the exception in ``rdukit.errors`` that ends an affected program.
    exception_code: str = ""
    #: Whether the cause stays until a repair, and the number of resets that do not cure it (``None``: all).
    persists: bool = False
    resets_that_fail: int | None = 0
    suspects: tuple[Suspect, ...] = ()
    #: Whether it is a requested error, whose policy cannot be changed.
    is_command: bool = False
    #: Whether the component is gone from the node while the cause lasts.
    removes: bool = False

    @property
    def is_uncorrectable(self) -> bool:
        return self.impact is not ImpactScope.NOBODY

    def as_json(self) -> dict[str, object]:
        """Return the contract's fields."""
        return {
            "name": self.name, "error_type": self.error_type, "part": self.part, "component_kind": str(self.kind),
            "cause": self.cause, "signs": self.signs, "severity": str(self.severity), "effect": self.effect,
            "suggestion": self.suggestion, "action": str(self.action), "is_uncorrectable": self.is_uncorrectable,
            "persists": self.persists,
        }  # fmt: skip

    def policy(self) -> Policy | None:
        """Return the policy that a node starts with; ``None``: these errors never become a fault."""
        if not self.fault_type:
            return None
        return Policy(
            self.error_type, self.fault_type, self.count, self.window_s, self.action, self.severity,
            self.fault_desc, self.effect, self.suggestion,
        )  # fmt: skip


_REGISTER: dict[str, FaultClass] = {}
#: Every registered class by name; read through ``catalogue``, which imports the parts first.
REGISTER: Final = MappingProxyType(_REGISTER)


def fault(name: str, **fields: object) -> Callable[[SampleData], SampleData]:
    """Register a fault class; the decorated function samples the data of one error.

    Raises:
        ValueError: the name or the error type is taken, or the entry contradicts itself.
    """

    def register(sample: SampleData) -> SampleData:
        entry = FaultClass(name=name, sample=sample, **fields)  # type: ignore[arg-type]
        if name in _REGISTER or any(entry.error_type == other.error_type for other in _REGISTER.values()):
            raise ValueError(f"two fault classes are called {name!r} or have the error type {entry.error_type}")
        if entry.is_uncorrectable != bool(entry.exception_code):
            raise ValueError(f"fault class {name!r} needs an exception code if it hits somebody, and only then")
        if entry.kind not in LEGAL_KINDS[entry.action]:
            raise ValueError(f"fault class {name!r}: {entry.action} is not for a {entry.kind}")
        _REGISTER[name] = entry
        return sample

    return register


_IN_RDU: Final = frozenset({ComponentKind.RDU, ComponentKind.DIMM, ComponentKind.PCIE, ComponentKind.TILE})
#: Kinds of component that each action is for.
LEGAL_KINDS: Final = MappingProxyType(
    {
        Action.NONE: frozenset(ComponentKind),
        Action.RESET_TILE: frozenset({ComponentKind.TILE}),
        Action.EXCLUDE_TILE: frozenset({ComponentKind.TILE}),
        Action.RETIRE_CHANNEL: frozenset({ComponentKind.DIMM}),
        Action.REROUTE: frozenset({ComponentKind.PCIE}),
        Action.RESET_RDU: _IN_RDU,
        Action.RETIRE_RDU: _IN_RDU,
        Action.RETIRE_NODE: frozenset({ComponentKind.NODE}),
    }
)
