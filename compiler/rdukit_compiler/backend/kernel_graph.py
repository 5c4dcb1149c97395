"""torch's graph ↔ our portable kernel graph."""

from typing import Any

import torch
from torch import fx

from rdukit.errors import InvalidGraph
from rdukit.pef.kernel import KernelGraph, KernelNode, TensorSpec
from rdukit_compiler.operators.naming import callable_of, decode, dtype_name, encode, name_of
from rdukit_compiler.operators.own_operators import own_operator


def kernel_from_fx(graph: fx.Graph) -> KernelGraph:
    """Convert a flat graph of ATen calls to a kernel, with canonical names so that equal sections are equal.

    Every placeholder carries its fake tensor in ``meta["val"]``.
    """
    names: dict[fx.Node, str] = {}
    inputs: list[TensorSpec] = []
    nodes: list[KernelNode] = []
    outputs: tuple[str | None, ...] = ()

    def name_of_value(value: object) -> str | None:
        return names[value] if isinstance(value, fx.Node) else None

    for node in graph.nodes:
        if node.op == "placeholder":
            names[node] = f"i{len(inputs)}"
            inputs.append(spec_of(names[node], node.meta["val"]))
        elif node.op == "call_function":
            args = tuple(encode(a, name_of_value) for a in node.args)
            kwargs = {k: encode(v, name_of_value) for k, v in node.kwargs.items()}
            names[node] = f"v{len(nodes)}"
            nodes.append(KernelNode(names[node], name_of(node.target), args, kwargs))
        elif node.op == "output":
            outputs = tuple(None if item is None else names[item] for item in node.args[0])
        else:
            raise InvalidGraph(f"a kernel cannot hold the node {node.format_node()}")
    return KernelGraph(tuple(inputs), tuple(nodes), outputs)


def spec_of(name: str, value: torch.Tensor) -> TensorSpec:
    """Return the spec of a (fake) tensor."""
    return TensorSpec(name, dtype_name(value.dtype), tuple(map(int, value.shape)), tuple(map(int, value.stride())))


def fx_from_kernel(kernel: KernelGraph) -> fx.GraphModule:
    """Return the kernel as a torch module with flat inputs; absent outputs are left out."""
    own_operator("int8_linear")  # registers them all
    graph = fx.Graph()
    values: dict[str, Any] = {spec.name: graph.placeholder(spec.name) for spec in kernel.inputs}
    for node in kernel.nodes:
        args = tuple(decode(a, values) for a in node.args)
        kwargs = {k: decode(v, values) for k, v in node.kwargs.items()}
        values[node.name] = graph.call_function(callable_of(node.op), args, kwargs)
    graph.output(tuple(values[name] for name in kernel.outputs if name is not None))
    return fx.GraphModule(torch.nn.Module(), graph)


def example_inputs(kernel: KernelGraph) -> list[torch.Tensor]:
    """Return tensors of zeros with the kernel's input shapes, dtypes and strides."""
    return [
        torch.empty_strided(spec.shape, spec.stride, dtype=getattr(torch, spec.dtype)).zero_() for spec in kernel.inputs
    ]
