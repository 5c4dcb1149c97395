"""Find the operator for which the kernel check refuses a section: each is built natively alone, then beginnings are.

Units are judged as a compile judges them, in children, so that a native kernel that crashes ends its child only.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from rdukit.errors import NotFound, RdukitError
from rdukit.pef.file import LoadedPef
from rdukit.pef.kernel import KernelGraph, KernelNode, TensorSpec, references
from rdukit.pef.operators import GETITEM
from rdukit.pef.units import KernelVerdict, Outcome, Unit, find_units
from rdukit_compiler.backend.kernel_graph import spec_of
from rdukit_compiler.backend.measure_routes import load_routes
from rdukit_compiler.backend.native_worker import write_section
from rdukit_compiler.backend.section_library import compile_sections
from rdukit_runtime.check.children import JudgedFiles, judge_all
from rdukit_runtime.engine.portable import build_portable

#: Writes the native code of a kernel.
Write = Callable[[KernelGraph], str]


@dataclass(frozen=True, slots=True)
class Blamed:
    """What differs: ``part`` is ``forward`` or ``backward``; without ``node`` only the two together do."""

    part: str
    node: KernelNode | None
    reason: str

    def __str__(self) -> str:
        where = f"{self.part}: {self.node.name} = {self.node.op}" if self.node else self.part
        return f"{where}: {self.reason}"


def find_unit(loaded: LoadedPef, digest: str) -> Unit:
    """Return the unit of which a kernel's digest, or its own, begins with ``digest``.

    Raises:
        NotFound: there is none.
    """
    units = find_units(loaded.pef.sections, loaded.kernels)
    for unit in units.values():
        if any(known.startswith(digest) for known in (unit.digest, *unit.kernel_digests)):
            return unit
    raise NotFound(f"no section has a digest that begins with {digest!r}; 'rdukit pef show' lists them")


def blame(unit: Unit, folder: Path, write: Write | None = None) -> list[Blamed]:
    """Return what differs natively, empty if the unit is right.

    Args:
        folder: for libraries.
        write: None writes as a compile does.
    """
    search = _Search(folder, write or (lambda kernel: write_section(kernel, load_routes())))
    whole = search.judge([unit])[0]
    if whole.outcome is not Outcome.REFUSED:
        return []
    parts = zip(("forward", "backward"), unit.kernels, strict=False)
    found = [each for part, kernel in parts for each in search.blame_kernel(part, kernel)]
    return found or [Blamed("forward and backward together", None, whole.reason)]


class _Search:
    def __init__(self, folder: Path, write: Write) -> None:
        self._folder = folder
        self._write = write

    def blame_kernel(self, part: str, kernel: KernelGraph) -> list[Blamed]:
        """Return the operators that differ alone; if none does, the last of the shortest beginning that differs."""
        specs = find_specs(kernel)
        alone = [(node, cut(kernel, [node], specs)) for node in kernel.nodes if node.op != GETITEM]
        verdicts = self.judge([Unit(each) for _, each in alone])
        found = [Blamed(part, node, verdict.reason) for (node, _), verdict in zip(alone, verdicts, strict=True)
                 if verdict.outcome is Outcome.REFUSED]  # fmt: skip
        if found or self.judge([Unit(kernel)])[0].outcome is not Outcome.REFUSED:
            return found
        right, wrong, reason = 0, len(kernel.nodes), "all results together differ"
        while wrong - right > 1:
            middle = (right + wrong) // 2
            verdict = self.judge([Unit(cut(kernel, kernel.nodes[:middle], specs))])[0]
            if verdict.outcome is Outcome.REFUSED:
                wrong, reason = middle, verdict.reason
            else:
                right = middle
        return [Blamed(part, kernel.nodes[wrong - 1], f"only with those before it: {reason}")]

    def judge(self, units: Sequence[Unit]) -> list[KernelVerdict]:
        """Return the verdict on each unit, its kernels built natively; one without native form is not judged."""
        codes: dict[str, str] = {}
        verdicts: dict[int, KernelVerdict] = {}
        for number, unit in enumerate(units):
            try:
                with warnings.catch_warnings(action="ignore"):  # inductor warns while it is imported
                    codes |= {kernel.digest(): self._write(kernel) for kernel in unit.kernels}
            except Exception as cause:  # noqa: BLE001 - what inductor cannot write is not to blame
                verdicts[number] = KernelVerdict(Outcome.NOT_JUDGED, f"{type(cause).__name__}: {cause}")
        missing = {digest: code for digest, code in codes.items() if not (self._folder / f"{digest}.so").exists()}
        built = compile_sections(missing, load_routes().definitions()) if missing else {}
        for digest, library in built.items():
            (self._folder / f"{digest}.so").write_bytes(library)
        left = [number for number in range(len(units)) if number not in verdicts]
        for number in left:
            (self._folder / f"{units[number].digest}.unit").write_bytes(units[number].to_json())
        made: list[KernelVerdict] = []
        files = JudgedFiles(self._folder, [units[number].digest for number in left], is_full=True)
        judge_all(files, lambda _, verdict: made.append(verdict))
        verdicts |= dict(zip(left, made, strict=True))
        return [verdicts[number] for number in range(len(units))]


def find_specs(kernel: KernelGraph) -> dict[str, TensorSpec]:
    """Return the specs of a kernel's tensors: its portable form says what operators return for zeros or ones.

    Raises:
        RdukitError: it takes neither.
    """
    names = tuple(node.name for node in kernel.nodes)
    run = build_portable(KernelGraph(kernel.inputs, kernel.nodes, names))
    for make in (torch.Tensor.zero_, lambda t: t.fill_(1)):
        given = [make(torch.empty_strided(s.shape, s.stride, dtype=getattr(torch, s.dtype))) for s in kernel.inputs]
        try:
            made = run(tuple(given), {})
        except Exception:  # noqa: BLE001 - whatever an operator says of numbers that it does not take
            continue
        found = {spec.name: spec for spec in kernel.inputs}
        found.update((n, spec_of(n, t)) for n, t in zip(names, made, strict=True) if isinstance(t, torch.Tensor))
        return found
    raise RdukitError("the section's portable form takes neither zeros nor ones; its operators cannot be tried alone")


def cut(kernel: KernelGraph, nodes: Sequence[KernelNode], specs: Mapping[str, TensorSpec]) -> KernelGraph:
    """Return a kernel of some nodes, and of those that take elements out of their results: all that leaves them."""
    made = {node.name for node in nodes}
    taken = [*nodes]
    for node in kernel.nodes:
        if node.op == GETITEM and node.name not in made and references(node.args)[0] in made:
            taken.append(node)
            made.add(node.name)
    read = dict.fromkeys(name for node in taken for name in _reads(node) if name not in made)
    outputs = tuple(node.name for node in taken if node.name in specs)
    return KernelGraph(tuple(replace(specs[name], name=name) for name in read), tuple(taken), outputs)


def _reads(node: KernelNode) -> Iterator[str]:
    yield from references([*node.args, *node.kwargs.values()])
