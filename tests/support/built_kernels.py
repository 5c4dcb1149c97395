"""Functions as kernels, portable and native: those of a file are compiled together, once, and kept between runs."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rdukit.pef.kernel import KernelGraph
from rdukit_compiler.backend.kernel_graph import kernel_from_fx
from rdukit_compiler.backend.measure_routes import load_routes
from rdukit_compiler.backend.native_worker import write_section
from rdukit_compiler.torch_private import FakeTensorMode, trace_functional, without_onednn
from rdukit_runtime.engine.native import load_native
from rdukit_runtime.engine.portable import Kernel, build_portable
from support.native_libraries import keep

#: A function of tensors, and what it is given.
Call = tuple[Callable[..., Any], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Built:
    """A function's kernel, in both forms, and what it is given."""

    graph: KernelGraph
    native: Kernel
    portable: Kernel
    inputs: Sequence[torch.Tensor]

    def results(self) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        """Results of the native and of the portable form, each on inputs of its own."""
        native, portable = (form(tuple(t.clone() for t in self.inputs), {}) for form in (self.native, self.portable))
        return native, portable


def kernel_of(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> KernelGraph:
    """Trace a function, which returns a tensor or several, gradients included."""

    def flat(*tensors: torch.Tensor) -> list[torch.Tensor]:
        made = function(*tensors)
        return list(made) if isinstance(made, list | tuple) else [made]

    with FakeTensorMode(), without_onednn():
        traced = trace_functional(
            flat, [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in inputs]
        )  # fmt: skip
    traced.graph.eliminate_dead_code()
    return kernel_from_fx(traced.graph)


def build(calls: Mapping[str, Call]) -> dict[str, Built]:
    """Build all functions, by name."""
    routes = load_routes()
    graphs = {name: kernel_of(function, inputs) for name, (function, inputs) in calls.items()}
    by_digest = {graph.digest(): graph for graph in graphs.values()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # inductor warns while it is imported
        libraries = keep(
            dict.fromkeys(by_digest, routes.word()), routes.definitions(),
            lambda digest: write_section(by_digest[digest], routes),
        )  # fmt: skip
    return {
        name: Built(
            graph, load_native(graph.digest(), libraries[graph.digest()], len(graph.inputs), len(graph.outputs)),
            build_portable(graph), calls[name][1],
        )
        for name, graph in graphs.items()
    }  # fmt: skip


def with_gradient(function: Callable[..., Any]) -> Callable[..., list[torch.Tensor]]:
    """Return a function that gives results and the gradient of the first argument."""

    def made(x: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
        x = x.detach().requires_grad_()
        results = function(x, *others)
        flowing = [r for r in (results if isinstance(results, list | tuple) else [results]) if r.requires_grad]
        weights = [torch.linspace(0.5, 1.5, r.numel()).reshape(r.shape).to(r.dtype) for r in flowing]
        return [*(r.detach() for r in flowing), *torch.autograd.grad(flowing, [x], weights)]

    return made


def agree(a: torch.Tensor, b: torch.Tensor, tolerance: float = 3e-6) -> bool:
    """Whether each number is nearly the same, relative to itself, or equally none, and of the same sign if zero."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    wide, other = a.double(), b.double()
    near = (a == b) | (a.isnan() & b.isnan()) | ((wide - other).abs() <= tolerance * other.abs() + 1e-44)
    signs = (a == 0) & (b == 0) & (a.signbit() != b.signbit())
    return bool(near.all()) and not bool(signs.any())
