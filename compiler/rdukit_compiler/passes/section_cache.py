"""Section cache, in memory and on disk: equal sections are differentiated once.

Two sections are equal when they make the same calls on values of the same kinds, dtypes and shapes, in the same
positions, whatever the values' names. Layers of a transformer are equal, so a deep model costs little more than a
shallow one. The kernels of a repeated section are those of the first; only the names that they are bound to change.

On disk the folder is ``$RDUKIT_HOME/sections/<compiler>``, where ``<compiler>`` stands for the versions of torch and of
this package, its source, and the processor. Files are ``rdukit.files.disk_cache``: a damaged one counts as absent and
is written again, and those used longest ago go when the folder exceeds its bound.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from rdukit import __version__
from rdukit.errors import PefCorrupt
from rdukit.files.atomic import sha256_of
from rdukit.files.disk_cache import (
    CachedFile,
    choose_evicted,
    list_cached,
    load_cached,
    remove_cached,
    store_cached,
    sweep_temporary,
)
from rdukit.pef.kernel import kernel_from_json, rename_references
from rdukit.pef.operators import check_operators
from rdukit.settings import home_folder, resolve
from rdukit.system.cpu import cpu_signature
from rdukit_compiler.ir import ModelGraph, Operator
from rdukit_compiler.operators.supported import refusing, runs_on_host
from rdukit_compiler.passes.assign_precision import Precision
from rdukit_compiler.passes.differentiate import (
    OperatorShape,
    SavedValue,
    SectionKernels,
    TensorShape,
    build_kernels,
    is_overwritten,
    section_inputs,
    section_outputs,
    updated_positions,
)
from rdukit_compiler.settings import SECTION_CACHE

logger = logging.getLogger(__name__)


class SectionStore:
    """Files of section kernels in one folder. A failed read or write is not an error: it only costs time."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        #: Whether this object has written a file since ``trim``.
        self._has_grown = False

    def find(self, structure: str) -> SectionKernels | None:
        """Find the kernels of a section of this structure, bound to placeholders; None if there are none."""
        path = self._path(structure)
        content = load_cached(path, time.time())
        if content is None:
            return None
        try:
            return _decoded(json.loads(content))
        except (ValueError, KeyError, TypeError, AttributeError, PefCorrupt) as cause:
            logger.warning("section of the cache is left out: path=%s reason=%s", path, cause)
            return None

    def keep(self, structure: str, kernels: SectionKernels) -> None:
        """Write the kernels of a section; the values' names do not matter."""
        content = json.dumps(_encoded(kernels), separators=(",", ":")).encode()
        try:
            store_cached(self._path(structure), content)
        except OSError as cause:
            logger.warning("section was not kept: folder=%s reason=%s", self.folder, cause)
            return
        self._has_grown = True

    def trim(self) -> None:
        """Remove the least recently used files, of this compiler and of others, until the bound holds."""
        if not self._has_grown:
            return
        self._has_grown = False
        root = self.folder.parent
        sweep_temporary(root, time.time())
        remove_cached(choose_evicted(list_sections(root), self._max_bytes))

    def _path(self, structure: str) -> Path:
        return self.folder / f"{sha256_of(structure.encode())}.json"


def open_section_store() -> SectionStore | None:
    """Return the installation's store; None if the settings switch it off."""
    max_bytes = resolve(SECTION_CACHE) << 20
    return SectionStore(sections_folder() / compiler_digest(), max_bytes) if max_bytes > 0 else None


def sections_folder() -> Path:
    """Return the folder of the sections of all compilers, each in a separate folder."""
    return home_folder() / "sections"


def list_sections(root: Path) -> list[CachedFile]:
    """List the section files of the store, of this compiler and of others."""
    return list_cached(sorted(root.glob("*/*.json")))


@cache
def compiler_digest() -> str:
    """Digest everything other than structure on which a section's kernels depend: versions, source and processor."""
    package = Path(__file__).parent.parent
    sources = sorted(package.rglob("*.py"))
    parts = [__version__, torch.__version__, cpu_signature(), *(sha256_of(path.read_bytes()) for path in sources)]
    return sha256_of(" ".join(parts).encode())[:16]


def _encoded(kernels: SectionKernels) -> dict[str, Any]:
    """Encode kernels; values are renamed to ``i0`` … and ``o0`` … by their positions among inputs and outputs."""
    name_of = {name: f"i{position}" for position, name in enumerate(kernels.inputs)}
    name_of |= {name: f"o{position}" for position, name in enumerate(kernels.outputs)}
    return {
        "inputs": [name_of[name] for name in kernels.inputs],
        "outputs": [name_of[name] for name in kernels.outputs],
        "forward": kernels.forward.to_json().decode(),
        "saved": [[name_of.get(s.value or ""), s.index, s.dtype, s.shape] for s in kernels.saved],
        "tangents": [name_of[name] for name in kernels.tangents],
        "gradients": [name_of[name] for name in kernels.gradients],
        "backward": None if kernels.backward is None else kernels.backward.to_json().decode(),
        "forward_work": [[work.op, work.inputs, work.outputs] for work in kernels.forward_work],
        "backward_work": [[work.op, work.inputs, work.outputs] for work in kernels.backward_work],
    }


def _decoded(value: Mapping[str, Any]) -> SectionKernels:
    backward = value["backward"]
    return SectionKernels(
        inputs=tuple(value["inputs"]),
        outputs=tuple(value["outputs"]),
        forward=kernel_from_json(value["forward"].encode()),
        saved=tuple(SavedValue(name, index, dtype, tuple(shape)) for name, index, dtype, shape in value["saved"]),
        tangents=tuple(value["tangents"]),
        gradients=tuple(value["gradients"]),
        backward=None if backward is None else kernel_from_json(backward.encode()),
        forward_work=_work(value["forward_work"]),
        backward_work=_work(value["backward_work"]),
    )


def _work(rows: Sequence[Any]) -> tuple[OperatorShape, ...]:
    return tuple(OperatorShape(op, _shapes(inputs), _shapes(outputs)) for op, inputs, outputs in rows)


def _shapes(rows: Sequence[Any]) -> tuple[TensorShape, ...]:
    return tuple((tuple(shape), dtype) for shape, dtype in rows)


class SectionCache:
    """Builds sections' kernels; each structure is traced once, or never if the store has it from an earlier compile.

    Valid for one compile, over all its graphs.
    """

    def __init__(self, store: SectionStore | None = None) -> None:
        self._store = store
        #: Called after each section.
        self.on_built: Callable[[], None] = lambda: None
        #: Called before the first trace of this compile: of a structure that the store lacks.
        self.on_new: Callable[[], None] = lambda: None
        #: Structure → kernels, bound to the first section with it.
        self._known: dict[str, SectionKernels] = {}
        #: The last graph and the readers of its values, which are computed once for each graph.
        self._graph: ModelGraph | None = None
        self._readers: Mapping[str, Sequence[Operator]] = {}

    def __len__(self) -> int:
        """Return the number of different structures so far."""
        return len(self._known)

    def build(
        self, graph: ModelGraph, operators: Sequence[Operator], precision: Precision, contributions: Mapping[str, int]
    ) -> SectionKernels:
        """Return the result of ``build_kernels`` for the same arguments.

        Raises:
            CompileError: torch refuses one of the operators, or its gradient.
        """
        if graph is not self._graph:
            self._graph, self._readers = graph, graph.consumers()
        inputs = section_inputs(graph, operators)
        outputs = section_outputs(graph, operators, self._readers)
        structure = describe_structure(graph, operators, inputs, outputs, precision, contributions)
        known = self._known.get(structure)
        # A user-defined operator may change from one compile to the next.
        store = None if any(runs_on_host(operator) for operator in operators) else self._store
        if known is None and store is not None:
            known = store.find(structure)
        if known is None:
            self.on_new()
            self.on_new = lambda: None

            def compile_alone(operator: Operator) -> object:
                flowing = {name: 1 for name in operator.outputs if graph.values[name].requires_grad}
                return _checked(build_kernels(graph, [operator], precision, flowing, self._readers))

            with refusing(operators, compile_alone):
                known = _checked(build_kernels(graph, operators, precision, contributions, self._readers))
            if store is not None:
                store.keep(structure, known)
        self._known[structure] = known
        self.on_built()
        return rebind(known, inputs, outputs)


def _checked(built: SectionKernels) -> SectionKernels:
    """Return the kernels, after a check that a PEF may hold every operator.

    Raises:
        PefNotAllowed: a PEF may not hold one.
    """
    for kernel in (built.forward, built.backward):
        if kernel is not None:
            check_operators(kernel)
    return built


def describe_structure(
    graph: ModelGraph, operators: Sequence[Operator], inputs: Sequence[str], outputs: Sequence[str],
    precision: Precision, contributions: Mapping[str, int],
) -> str:  # fmt: skip
    """Describe everything that a section's kernels depend on, as text with values numbered by position.

    The text has: precision; whether there are several chips; kind, dtype, shape, differentiability and exactness of
    each input, and whether it is overwritten; each call with its literal arguments (``1``, ``1.0`` and ``True``
    differ); outputs with dtype, shape and number of arriving gradients; and which outputs are new values of which
    inputs.
    """
    names: dict[str, str] = {}
    lines = [f"{precision.name} {precision.training}"]
    for name in inputs:
        value = graph.values[name]
        names[name] = f"i{len(names)}"
        changes = is_overwritten(graph, name, precision)
        held = f"{value.kind} {value.dtype} {value.shape} {value.requires_grad} {value.is_exact}"
        lines.append(f"{held} {changes}")
    for operator in operators:
        args = [rename_references(argument, names) for argument in operator.args]
        kwargs = [(key, rename_references(argument, names)) for key, argument in sorted(operator.kwargs.items())]
        for name in operator.outputs:
            names[name] = f"v{len(names)}"
        lines.append(f"{operator.op} {args!r} {kwargs!r} {len(operator.outputs)} {operator.compute}")
    for name in outputs:
        value = graph.values[name]
        lines.append(
            f"{names[name]} {value.dtype} {value.shape} {value.requires_grad} {contributions.get(name, 0)}"
        )  # fmt: skip
    if graph.chips > 1:
        lines.append("joins inputs in its backward")
    if updated := updated_positions(graph, inputs, outputs):
        lines.append(f"updates {sorted(updated.items())}")
    return "\n".join(lines)


def rebind(kernels: SectionKernels, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> SectionKernels:
    """Return the same kernels bound to another section's values in the same positions."""
    before, after = (*kernels.inputs, *kernels.outputs), (*inputs, *outputs)
    if before == after:
        return kernels
    name_of = dict(zip(before, after, strict=True))
    return replace(
        kernels,
        inputs=inputs,
        outputs=outputs,
        saved=tuple(s if s.value is None else replace(s, value=name_of[s.value]) for s in kernels.saved),
        tangents=tuple(name_of[name] for name in kernels.tangents),
        gradients=tuple(name_of[name] for name in kernels.gradients),
    )
