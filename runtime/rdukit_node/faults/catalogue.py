"""The catalogue of fault classes, and the checks of injections and policies against it. Pure.

Source: runtime reference 4.2; the class files say which names are the vendor's.
"""

import importlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final
from zlib import crc32

from rdukit.errors import InvalidArgument, NotFound
from rdukit.hardware import NodeSpec
from rdukit_node.faults.model import Injection, Policy
from rdukit_node.faults.register import LEGAL_KINDS, REGISTER, FaultClass
from rdukit_node.inventory import ComponentKind, NodeComponent, components, find_component

#: Parts of the machine, in the manual's order, and the modules that register their classes.
PARTS: Final = ("ddr", "scratchpad", "tile", "pcie", "rdu", "d2d", "thermal", "host", "daemon")
_MODULES: Final = ("rdu_classes", "node_classes")


@cache
def fault_classes() -> Mapping[str, FaultClass]:
    """Return the fault classes by name, part by part."""
    for module in _MODULES:
        importlib.import_module(f"rdukit_node.faults.{module}")
    ordered = sorted(REGISTER.values(), key=lambda entry: PARTS.index(entry.part))
    return MappingProxyType({entry.name: entry for entry in ordered})


def find_class(name: str) -> FaultClass:
    """Return the class called ``name``.

    Raises:
        InvalidArgument: the class is unknown; the message lists the known ones.
    """
    found = fault_classes().get(name)
    if found is None:
        raise InvalidArgument(f"unknown fault class {name!r}; expected {', '.join(fault_classes())}")
    return found


@cache
def class_by_error_type() -> Mapping[str, FaultClass]:
    """Return the fault classes by error type."""
    return {entry.error_type: entry for entry in fault_classes().values()}


@cache
def fault_types() -> tuple[str, ...]:
    """List the fault types, sorted."""
    return tuple(sorted({entry.fault_type for entry in fault_classes().values() if entry.fault_type}))


@cache
def default_policies() -> Mapping[str, Policy]:
    """Return the policies that a node starts with, by error type."""
    found = {entry.error_type: entry.policy() for entry in fault_classes().values()}
    return {error_type: policy for error_type, policy in found.items() if policy is not None}


def catalogue_rows() -> list[dict[str, object]]:
    """Return one row a class, part by part."""
    return [entry.as_json() for entry in fault_classes().values()]


_MAX: Final = 1_000_000
_MAX_SEED: Final = 2**63 - 1
_MAX_WINDOW_S: Final = 366 * 86_400
_DATA_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class CheckedInjection:
    """An injection that is legal, with its component chosen."""

    entry: FaultClass
    component: NodeComponent
    count: int
    seed: int
    data: dict[str, object]
    persists: bool
    #: Number of resets until the cause is cured; ``None``: resets do not cure it.
    resets_that_fail: int | None
    lease: str | None


class InjectionChecker:
    """Checker of injections on one node: turns valid ones into events."""

    def __init__(self, node: NodeSpec) -> None:
        self._node = node
        self._by_path: Final = {component.path: component for component in components(node)}
        #: Present components of a kind at or below a path, filled on demand.
        self._candidates: Final[dict[tuple[ComponentKind, str], tuple[NodeComponent, ...]]] = {}

    @property
    def components(self) -> Iterable[NodeComponent]:
        """Components of the node."""
        return self._by_path.values()

    def find(self, path: str) -> NodeComponent:
        """Return the component called ``path``, with or without ``/NODE``.

        Raises:
            InvalidArgument: the node has no such component; the message names the components of its parent.
        """
        return self._by_path.get(path) or known_component(self._node, path)

    def check(self, injection: Injection, default_seed: int) -> CheckedInjection:
        """Resolve ``injection`` into an event.

        Args:
            default_seed: seed of component and data when the injection has no seed.
        Raises:
            InvalidArgument: a value is not valid; the message has the legal ones.
        """
        entry = find_class(injection.class_name)
        count, seed = injection.count, injection.seed
        if type(count) is not int or not 1 <= count <= _MAX:
            raise InvalidArgument(f"count of {entry.name} is {count!r}; expected 1 to {_MAX}")
        if seed is None:
            seed = default_seed
        elif type(seed) is not int or not 0 <= seed <= _MAX_SEED:
            raise InvalidArgument(f"seed of {entry.name} is {seed!r}; expected 0 to {_MAX_SEED}")
        component = self._choose_component(entry, injection.component, seed)
        if not injection.data:
            return CheckedInjection(entry, component, count, seed, {}, entry.persists, entry.resets_that_fail, None)
        return _with_data(entry, component, count, seed, dict(injection.data))

    def _choose_component(self, entry: FaultClass, path: str | None, seed: int) -> NodeComponent:
        if path is None:
            return _pick(self._below(entry.kind, "/NODE"), entry, seed)
        component = self.find(path)
        if component.kind is entry.kind:
            if component.is_empty_slot:
                raise InvalidArgument(f"{path} is an empty slot, but {entry.name} needs an existing {entry.kind}")
            return component
        below = self._below(entry.kind, component.path)
        if not below:
            example = self._below(entry.kind, "/NODE")[0].path
            raise InvalidArgument(
                f"{entry.name} affects a {entry.kind}, but {path} is a {component.kind}; expected a path such as "
                f"{example}, or one above it, below which the seed chooses"
            )
        return _pick(below, entry, seed)

    def _below(self, kind: ComponentKind, path: str) -> tuple[NodeComponent, ...]:
        found = self._candidates.get((kind, path))
        if found is None:
            prefix = path + "/"
            found = self._candidates[kind, path] = tuple(
                component
                for component in self._by_path.values()
                if component.kind is kind
                and (component.path == path or component.path.startswith(prefix))
                and not component.is_empty_slot
            )
        return found


def check_policy(policy: Policy) -> Policy:
    """Return ``policy`` with the catalogue's texts.

    Raises:
        InvalidArgument: a value is not valid; the message has the legal ones.
    """
    default = default_policies().get(policy.error_type)
    if default is None:
        raise InvalidArgument(f"error_type is {policy.error_type!r}; expected {', '.join(default_policies())}")
    if policy.fault_type not in fault_types():
        raise InvalidArgument(f"fault_type is {policy.fault_type!r}; expected {', '.join(fault_types())}")
    for name, number, most in (("count", policy.count, _MAX), ("window_s", policy.window_s, _MAX_WINDOW_S)):
        if type(number) is not int or not 1 <= number <= most:
            raise InvalidArgument(f"{name} of {policy.error_type} is {number!r}; expected 1 to {most}")
    entry = class_by_error_type()[policy.error_type]
    if entry.is_command:
        raise InvalidArgument(f"{policy.error_type} marks errors that a user requested; its policy cannot be changed")
    kind = entry.kind
    legal = [str(action) for action, kinds in LEGAL_KINDS.items() if kind in kinds]
    if str(policy.action) not in legal:
        raise InvalidArgument(
            f"action of {policy.error_type} is {policy.action!s}; expected for a {kind}: {', '.join(legal)}"
        )
    return Policy(
        policy.error_type, policy.fault_type, policy.count, policy.window_s, policy.action, policy.severity,
        policy.fault_desc or default.fault_desc, policy.fault_detail_desc or default.fault_detail_desc,
        policy.recovery_act or default.recovery_act,
    )  # fmt: skip


def known_component(node: NodeSpec, path: str) -> NodeComponent:
    """Return the component called ``path``, with or without ``/NODE``.

    Raises:
        InvalidArgument: the node has no such component; the message names the components of its parent.
    """
    if not isinstance(path, str) or len(path) > 256:
        raise InvalidArgument(f"component is {str(path)[:80]!r}; expected a path such as /NODE/XRDU_0/RDU_0/TILE_0")
    try:
        return find_component(node, path)
    except NotFound as error:
        raise InvalidArgument(error.message) from error


def _pick(candidates: tuple[NodeComponent, ...], entry: FaultClass, seed: int) -> NodeComponent:
    # A hash, not a generator: seeding a generator costs more than the rest of an event.
    return candidates[crc32(f"{seed}:{entry.name}".encode()) % len(candidates)]


def _with_data(
    entry: FaultClass, component: NodeComponent, count: int, seed: int, data: dict[str, object]
) -> CheckedInjection:
    try:
        size = len(json.dumps(data, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as cause:
        raise InvalidArgument(f"data of {entry.name} is not JSON: {cause}") from cause
    if size > _DATA_BYTES or not all(isinstance(key, str) for key in data):
        raise InvalidArgument(
            f"data of {entry.name} has {size} bytes; expected an object of {_DATA_BYTES} bytes at most"
        )
    persists = data.pop("persists", None)
    if persists is not None and not isinstance(persists, bool):
        raise InvalidArgument(f"data.persists of {entry.name} is {persists!r}; expected true, false")
    lease = data.pop("lease", None)
    if lease is not None and not isinstance(lease, str):
        raise InvalidArgument(f"data.lease of {entry.name} is {lease!r}; expected the id of a lease")
    resets = entry.resets_that_fail
    if "resets_that_fail" in data:
        given = data.pop("resets_that_fail")
        if given is not None and (type(given) is not int or not 0 <= given <= _MAX):
            raise InvalidArgument(
                f"data.resets_that_fail of {entry.name} is {given!r}; expected 0 to {_MAX}, or null for all"
            )
        resets = given
        persists = given != 0 if persists is None else persists
    elif persists and not entry.persists:
        resets = None
    return CheckedInjection(
        entry, component, count, seed, data, entry.persists if persists is None else persists, resets, lease
    )  # fmt: skip
