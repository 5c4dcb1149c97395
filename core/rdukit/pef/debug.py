"""Output of ``RDUKIT_DEBUG`` on stderr: the steps of a compile, and the addresses of a loaded PEF.

Each level includes all lower ones. The compiler prints the first four, the runtime the last.
"""

import sys
from collections.abc import Callable, Mapping
from enum import IntEnum

from rdukit.pef.kernel import Argument, KernelGraph, Ref, Special
from rdukit.pef.memory import persistent_layout
from rdukit.pef.model import Pef
from rdukit.settings import DEBUG, resolve


class DebugLevel(IntEnum):
    """Values of the setting ``debug``, named after their addition."""

    GRAPH = 1
    FUSIONS = 2
    CHOICES = 3
    KERNELS = 4
    ADDRESSES = 5


def print_debug(level: DebugLevel, title: str, describe: Callable[[], str]) -> None:
    """Print a title and, indented, the lines of ``describe()``, if the setting ``debug`` includes ``level``.

    ``describe`` is called only then.
    """
    if resolve(DEBUG) >= level:
        lines = "".join(f"    {line}\n" for line in describe().splitlines())
        print(f"[debug {level.value}] {title}\n{lines}", end="", file=sys.stderr, flush=True)


def describe_kernel(kernel: KernelGraph) -> str:
    """Describe a portable graph: a line for each input and call, and one for the outputs."""
    inputs = [f"{spec.name}: {spec.dtype}{list(spec.shape)}" for spec in kernel.inputs]
    calls = [f"{node.name} = {describe_call(node.op, node.args, node.kwargs)}" for node in kernel.nodes]
    return "\n".join([*inputs, *calls, f"return {', '.join(name or 'none' for name in kernel.outputs)}"])


def describe_call(op: str, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]) -> str:
    """Describe an operator's call in Python's syntax: ``aten.add.Tensor(x, y, alpha=2)``."""
    given = [_describe(argument) for argument in args]
    given += [f"{name}={_describe(argument)}" for name, argument in kwargs.items()]
    return f"{op}({', '.join(given)})"


def describe_addresses(pef: Pef) -> str:
    """Describe persistent device memory: for each region, its first and last byte in the lease, and its symbols."""
    offsets, end = persistent_layout(pef)
    names: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    for symbol in pef.symbols.values():
        if symbol.region in offsets:
            names.setdefault(symbol.region, []).append(f"{symbol.name} ({symbol.kind})")
            sizes[symbol.region] = max(sizes.get(symbol.region, 0), symbol.bytes)
    lines = [
        f"{begin:#012x} {begin + max(sizes[region], 1) - 1:#012x}  {region}: {', '.join(names[region])}"
        for region, begin in offsets.items()
    ]
    return "\n".join([*lines, f"{end:#012x} end"])


def _describe(argument: Argument) -> str:
    match argument:
        case Ref():
            return argument.name
        case Special():
            return argument.text
        case list():
            return f"[{', '.join(map(_describe, argument))}]"
        case _:
            return repr(argument)
