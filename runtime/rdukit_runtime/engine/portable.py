"""A kernel as one generated Python function over ATen operators: needs no C++ compiler.

Straight-line code with the operators bound as locals is twice as fast as an interpreter, and faster than the module
that was traced. The code is generated at load and never stored.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from rdukit.errors import PefCorrupt
from rdukit.pef.kernel import Argument, KernelGraph, KernelNode, Ref, Special, references
from rdukit_runtime.engine.optimizer_operators import OPERATORS

#: Takes the input tensors in order and the run-time scalars; returns the outputs in order.
Kernel = Callable[[Sequence[torch.Tensor], Mapping[str, float]], Sequence[torch.Tensor]]


def build_portable(graph: KernelGraph) -> Kernel:
    """Generate the function that runs ``graph``; values are freed after their last use.

    Raises:
        PefCorrupt: an operator or argument does not exist in this torch.
    """
    writer = _Writer(graph)
    return writer.function()


def count_operators(graph: KernelGraph) -> int:
    """Operator calls that one run of the kernel makes."""
    return sum(node.op != "getitem" for node in graph.nodes)


class _Writer:
    """Writes the function's text; whatever text cannot express is bound by name in ``scope``."""

    def __init__(self, graph: KernelGraph) -> None:
        self._graph = graph
        self._scope: dict[str, Any] = {}
        self._names = {spec.name: f"a{i}" for i, spec in enumerate(graph.inputs)}
        self._names |= {node.name: f"b{i}" for i, node in enumerate(graph.nodes)}

    def function(self) -> Kernel:
        last_use: dict[str, int] = {}
        for position, node in enumerate(self._graph.nodes):
            for name in references([*node.args, *node.kwargs.values()]):
                last_use[name] = position
        kept = set(self._graph.outputs) | {spec.name for spec in self._graph.inputs}
        lines: list[str] = []
        for position, node in enumerate(self._graph.nodes):
            lines.append(f"{self._names[node.name]} = {self._call(node)}")
            dead = [n for n, last in last_use.items() if last == position and n not in kept]
            if node.name not in last_use and node.name not in kept:
                dead.append(node.name)
            if dead:
                lines.append("del " + ", ".join(self._names[n] for n in dead))
        returned = ", ".join("None" if o is None else self._names[o] for o in self._graph.outputs)
        unpack = ", ".join(self._names[spec.name] for spec in self._graph.inputs)
        head = [f"({unpack},) = inputs"] if unpack else []
        body = "\n    ".join([*head, *lines, f"return ({returned}{',' if returned else ''})"])
        bound = "".join(f", {name}={name}" for name in self._scope)
        source = f"def run(inputs, scalars{bound}):\n    {body}\n"
        namespace = dict(self._scope)
        exec(compile(source, "<kernel>", "exec"), namespace)
        run: Kernel = namespace["run"]
        return run

    def _call(self, node: KernelNode) -> str:
        if node.op == "getitem":
            value, index = node.args
            return f"{self._text(value)}[{self._text(index)}]"
        function = self._bind("f", _callable_of(node.op))
        arguments = [self._text(a) for a in node.args] + [f"{k}={self._text(v)}" for k, v in node.kwargs.items()]
        return f"{function}({', '.join(arguments)})"

    def _text(self, argument: Argument) -> str:
        match argument:
            case Ref(name):
                return self._names[name]
            case Special("scalar", name):
                return f"scalars[{name!r}]"
            case Special(kind, text):
                return self._bind("k", _special(kind, text))
            case list():
                return "[" + ", ".join(self._text(item) for item in argument) + "]"
            case None | bool() | int() | float() | str():
                return repr(argument)
            case _:
                raise PefCorrupt(f"a kernel argument is of type {type(argument).__name__}")

    def _bind(self, prefix: str, value: Any) -> str:
        name = f"{prefix}{len(self._scope)}"
        self._scope[name] = value
        return name


def _callable_of(op: str) -> Callable[..., Any]:
    """The function that an operator names: ATen's, one of ours, or, in host sections, one that the program registered.

    Nothing else can be reached from a PEF.
    """
    if op in OPERATORS:
        return OPERATORS[op]  # type: ignore[no-any-return]
    parts = op.split(".")
    if len(parts) != 3 or parts[0] == "rdukit" or any(part.startswith("__") for part in parts):
        raise PefCorrupt(f"the PEF names operator {op!r}, which is neither ATen's nor ours")
    try:
        found = operator.attrgetter(op)(torch.ops)
    except AttributeError as cause:
        if parts[0] not in {"aten", "prims"}:
            raise PefCorrupt(
                f"the PEF runs operator {op!r} on the host, which this process does not have: import the library that "
                "registers it before the PEF is loaded"
            ) from cause
        raise PefCorrupt(f"the PEF names operator {op!r}, which torch {torch.__version__} does not have") from cause
    if not isinstance(found, torch._ops.OpOverload):
        raise PefCorrupt(f"the PEF names operator {op!r}, which is no operator of torch")
    return found


def _special(kind: str, text: str) -> Any:
    if kind == "device":
        return torch.device(text)
    if kind == "float":
        return float(text)
    value = getattr(torch, text, None)
    if not isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        raise PefCorrupt(f"the PEF names {kind} {text!r}, which torch does not have")
    return value
