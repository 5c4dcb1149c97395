"""A kernel as one generated Python function over ATen operators: needs no C++ compiler.

Straight-line code with the operators bound as locals is twice as fast as an interpreter, and faster than the module
that was traced. The code is generated at load and never stored.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from rdukit.errors import PefCorrupt, PefMismatch, PefNotAllowed
from rdukit.pef.kernel import Argument, KernelGraph, KernelNode, Ref, Special, references
from rdukit.pef.operators import find_signature, is_foreign
from rdukit.settings import DEVICE
from rdukit_runtime.engine.device import CPU
from rdukit_runtime.engine.device_operators import ELSEWHERE, wide_form, widens
from rdukit_runtime.engine.operand_checks import checked
from rdukit_runtime.engine.operators import (
    GROUPED_OPERATORS,
    GUARD_OPERATORS,
    LSTM_OPERATORS,
    NORM_OPERATORS,
)
from rdukit_runtime.engine.optimizer_operators import OPERATORS as OPTIMIZER_OPERATORS
from rdukit_runtime.engine.quantized_weights import WEIGHT_OPERATORS
from rdukit_runtime.engine.threads import in_one_thread
from rdukit_runtime.engine.torch_private import OpOverload, has_cuda_kernel

#: Our operators by name, including our replacements of torch operators.
OPERATORS: Final = {
    **GROUPED_OPERATORS, **GUARD_OPERATORS, **LSTM_OPERATORS, **NORM_OPERATORS, **OPTIMIZER_OPERATORS,
    **WEIGHT_OPERATORS,
}  # fmt: skip

#: Operators that run in another form. A few of torch's operators lay their results out otherwise than its records
#: say, so that a view is not always possible; for values that lie as recorded, a reshape is a view.
_FORMS: Final = dict.fromkeys(("aten.view.default", "aten._unsafe_view.default"), "aten.reshape.default")
#: Operators of torch whose threads add f32 numbers by atomic operations, in no fixed order. Runs differ in the last
#: bits, and several threads are several times slower than one.
_ADD_UNORDERED: Final = frozenset(
    {
        "aten.index_put.default", "aten.index_put_.default", "aten._unsafe_index_put.default",
        "aten._index_put_impl_.default", "aten.put.default", "aten.put_.default",
        "aten._unsafe_masked_index_put_accumulate.default",
    }
)  # fmt: skip

#: Takes the input tensors in order and the run-time scalars; returns the outputs in order. A list of inputs is the
#: kernel's to empty: values that the caller does not hold elsewhere are freed after their last use inside.
Kernel = Callable[[Sequence[torch.Tensor], Mapping[str, float]], Sequence[torch.Tensor]]


def build_portable(graph: KernelGraph, device: torch.device = CPU, is_trusted: bool = True) -> Kernel:
    """Generate the function that runs ``graph``; values are freed after their last use.

    Args:
        device: device of the kernel's inputs and its own tensors.
        is_trusted: whether this installation's compiler made the graph; otherwise operands that torch does not check
            are checked here.
    Raises:
        PefCorrupt: an operator or argument does not exist in this torch. PefMismatch: an operator does not exist on
        ``device``.
    """
    writer = _Writer(graph, device, is_trusted)
    return writer.function()


def count_operators(graph: KernelGraph) -> int:
    """Operator calls that one run of the kernel makes."""
    return sum(node.op != "getitem" for node in graph.nodes)


class _Writer:
    """Writes the function's text; values without a text are bound by name in ``scope``."""

    def __init__(self, graph: KernelGraph, device: torch.device, is_trusted: bool) -> None:
        self._graph = graph
        self._is_trusted = is_trusted
        self._device = device
        self._widens = widens(graph)
        self._scope: dict[str, Any] = {}
        self._names = {spec.name: f"a{i}" for i, spec in enumerate(graph.inputs)}
        self._names |= {node.name: f"b{i}" for i, node in enumerate(graph.nodes)}

    def function(self) -> Kernel:
        last_use: dict[str, int] = {}
        for position, node in enumerate(self._graph.nodes):
            for name in references([*node.args, *node.kwargs.values()]):
                last_use[name] = position
        kept = set(self._graph.outputs)
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
        head = [f"({unpack},) = inputs", "if type(inputs) is list: inputs.clear()"] if unpack else []
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
        called = _callable_of(node.op)
        keywords = dict(node.kwargs)
        if self._device.type != "cpu" and node.op not in OPERATORS:
            if _makes_from_nothing(called) and keywords.get("device") is None:
                keywords["device"] = Special("device", str(self._device))
            called = _on_device(node.op, called, self._device)
        elif node.op in _ADD_UNORDERED:
            called = in_one_thread(called)
        elif self._widens:
            called = wide_form(node.op, called)
        function = self._bind("f", called if self._is_trusted else checked(node.op, called))
        arguments = [self._text(a) for a in node.args] + [f"{k}={self._text(v)}" for k, v in keywords.items()]
        return f"{function}({', '.join(arguments)})"

    def _text(self, argument: Argument) -> str:
        match argument:
            case Ref(name):
                return self._names[name]
            case Special("scalar", name):
                return f"scalars[{name!r}]"
            case Special("device", "cpu"):
                return self._bind("k", self._device)
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
    """Return the function that an operator names: one of the list, ours or ATen's, or in host sections a program's own.

    A PEF cannot reach any other function.
    """
    if op in OPERATORS:
        return OPERATORS[op]  # type: ignore[no-any-return]
    if find_signature(op) is None and not is_foreign(op):
        raise PefNotAllowed(f"the PEF names operator {op[:100]!r}, which a PEF may not use")
    try:
        found = operator.attrgetter(_FORMS.get(op, op))(torch.ops)
    except AttributeError as cause:
        if is_foreign(op):
            raise PefCorrupt(
                f"the PEF runs operator {op!r} on the host, but this process does not have it; import the library "
                "that registers it before loading the PEF"
            ) from cause
        raise PefCorrupt(f"the PEF names operator {op!r}, which torch {torch.__version__} does not have") from cause
    if not isinstance(found, OpOverload):
        raise PefCorrupt(f"the PEF names operator {op!r}, which is not an operator of torch")
    return found


def _makes_from_nothing(called: Any) -> bool:
    """Return whether an operator takes a device but no tensor that determines it, such as ``arange``."""
    schema = getattr(called, "_schema", None)
    if schema is None:
        return False
    kinds = {argument.name: str(argument.type) for argument in schema.arguments}
    return "device" in kinds and not any("Tensor" in kind for kind in kinds.values())


def _on_device(op: str, called: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return ``called``, or its equivalent on ``device`` if that is a GPU.

    Raises:
        PefMismatch: nothing does.
    """
    if op in ELSEWHERE:
        return ELSEWHERE[op]  # type: ignore[no-any-return]
    if device.type == "cuda" and isinstance(called, OpOverload) and not has_cuda_kernel(called):
        raise PefMismatch(
            f"the PEF uses operator {op!r}, which torch {torch.__version__} has no CUDA kernel for; run it on the host "
            f"with {DEVICE.variable}=cpu"
        )
    return called


def _special(kind: str, text: str) -> Any:
    if kind == "device":
        return torch.device(text)
    if kind == "float":
        return float(text)
    if kind == "complex":
        return complex(text)
    value = getattr(torch, text, None)
    if not isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        raise PefCorrupt(f"the PEF names {kind} {text!r}, which torch does not have")
    return value
