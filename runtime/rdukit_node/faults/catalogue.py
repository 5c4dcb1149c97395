"""All fault classes: a file a part, each in ``PARTS``.

Source: runtime reference 4.2; which of the names are the vendor's is said in the parts.
"""

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit_node.faults.model import Policy
from rdukit_node.faults.register import REGISTER, FaultClass

#: Files with classes, in the manual's order.
PARTS: Final = ("ddr", "scratchpad", "tile", "pcie", "rdu", "d2d", "thermal", "host", "daemon")


@cache
def fault_classes() -> Mapping[str, FaultClass]:
    """Every class by its name, part by part."""
    for part in PARTS:
        importlib.import_module(f"rdukit_node.faults.{part}")
    return REGISTER


def find_class(name: str) -> FaultClass:
    """The class called ``name``.

    Raises:
        InvalidArgument: there is none; the message lists the legal names.
    """
    found = fault_classes().get(name)
    if found is None:
        raise InvalidArgument(f"no fault class is called {name!r}; legal: {', '.join(fault_classes())}")
    return found


@cache
def class_by_error_type() -> Mapping[str, FaultClass]:
    """Every class by its error type."""
    return {entry.error_type: entry for entry in fault_classes().values()}


@cache
def fault_types() -> tuple[str, ...]:
    """All fault types, sorted."""
    return tuple(sorted({entry.fault_type for entry in fault_classes().values() if entry.fault_type}))


@cache
def default_policies() -> Mapping[str, Policy]:
    """The policies that a node starts with, by error type."""
    found = {entry.error_type: entry.policy() for entry in fault_classes().values()}
    return {error_type: policy for error_type, policy in found.items() if policy is not None}


def catalogue_rows() -> list[dict[str, object]]:
    """One row a class, part by part."""
    return [entry.as_json() for entry in fault_classes().values()]
