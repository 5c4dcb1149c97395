"""Functions as native sections by chosen routes: those of a file are compiled together, once, and kept between runs."""

import hashlib
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import torch

from rdukit_compiler.backend.choose_products import choose_products
from rdukit_compiler.backend.native_operators import interface_functions
from rdukit_compiler.backend.routes import Routes
from rdukit_compiler.backend.section_library import section_namespace
from rdukit_compiler.torch_private import trace_aten, without_onednn, write_code
from rdukit_runtime.engine.native import NativeKernel, load_native
from support.native_libraries import keep

Tensors = Sequence[torch.Tensor]
_THREADS: Final = 2


class SectionCase(NamedTuple):
    """Function of tensors that returns several, its inputs, and the routes by which it is compiled."""

    function: Callable[..., tuple[torch.Tensor, ...]]
    inputs: Tensors
    routes: Routes = Routes()

    def traced(self) -> "TracedSection":
        """Return the function's graph with its products by the routes."""
        with without_onednn():
            module = trace_aten(self.function, self.inputs)
        choose_products(module, self.routes)
        return TracedSection(module, self.inputs, self.routes)


class TracedSection(NamedTuple):
    """Graph of operators that code is written from, its inputs, and the routes whose definitions the compiler gets."""

    module: torch.fx.GraphModule
    inputs: Tensors
    routes: Routes = Routes()


def numbers(*shape: int) -> torch.Tensor:
    """Return normal random numbers, the same for each shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def build_sections(cases: Mapping[str, SectionCase]) -> dict[str, NativeKernel]:
    """Return the kernel of each case, by name."""
    return build_traced({name: case.traced() for name, case in cases.items()})


def build_traced(sections: Mapping[str, TracedSection]) -> dict[str, NativeKernel]:
    """Return the kernel of each section, by name. Sections with equal graphs share one.

    Code is written only for sections that no earlier run has compiled: inductor takes longer than all else.
    """
    by_digest: dict[str, TracedSection] = {}
    digests: dict[str, str] = {}
    #: By definitions for the C++ compiler: digest of a section to what its code follows from.
    origins: dict[tuple[tuple[str, int], ...], dict[str, str]] = defaultdict(dict)
    for name, section in sections.items():
        definitions, origin = tuple(sorted(section.routes.definitions().items())), _origin(section)
        digest = digests[name] = hashlib.sha256(f"{definitions} {origin}".encode()).hexdigest()
        by_digest[digest] = section
        origins[definitions][digest] = origin

    def write(digest: str) -> str:
        module, inputs, _ = by_digest[digest]
        return section_namespace("section", *write_code(module, inputs, interface_functions(), threads=_THREADS))

    libraries: dict[str, bytes] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # inductor's own, as it is imported
        for definitions, found in origins.items():
            libraries |= keep(found, dict(definitions), write)
    kernels = {
        digest: load_native(digest, libraries[digest], len(section.inputs), _count_results(section.module))
        for digest, section in by_digest.items()
    }
    return {name: kernels[digest] for name, digest in digests.items()}


def _origin(section: TracedSection) -> str:
    constants = {name: tensor.tolist() for name, tensor in section.module.named_buffers()}
    given = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in section.inputs]
    return f"{section.module.graph}\n{constants}\n{given}\n{_THREADS}"


def _count_results(module: torch.fx.GraphModule) -> int:
    (results,) = module.graph.output_node().args
    assert isinstance(results, list | tuple)
    return len(results)
