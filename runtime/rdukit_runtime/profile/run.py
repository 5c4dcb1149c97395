"""Run a PEF alone, with made-up values, and time its sections: the effects of ``rdukit pef profile``.

Inputs and parameters get small random numbers, and buffers positive ones, since one may be a variance. Integers get
zeros, or random rows if only table look-ups read them, so that a look-up is as slow as in use. Booleans are true: an
empty attention mask would give no numbers. Optimizer state keeps its zeros.

Source: ours.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from rdukit.errors import InvalidArgument
from rdukit.pef.file import read_pef
from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, references
from rdukit.pef.model import Graph, Pef, SymbolKind
from rdukit_runtime.application import Application, open_application
from rdukit_runtime.engine.device import engine_device
from rdukit_runtime.engine.machine_limits import load_limits, renew_limits
from rdukit_runtime.engine.portable import Kernel, build_portable, count_operators
from rdukit_runtime.engine.program import LoadedProgram
from rdukit_runtime.profile.operators import OperatorClock, OperatorRow
from rdukit_runtime.profile.pef import Measured, Profile, SectionWork, limit_dtype, section_rows

#: An application's name on the node while it is profiled.
_NAME = "profile"


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """Graphs and section types to run. None means all: graphs in order, or section types."""

    path: Path
    runs: int = 10
    graph: str | None = None
    types: tuple[str, ...] | None = None
    #: Leave native libraries aside and run generated ATen code.
    is_portable: bool = False
    #: Measure the machine again, even if its limits are cached.
    renews_limits: bool = False


#: Called after each run.
OnRun = Callable[[], None]


def profile_file(request: ProfileRequest, on_run: OnRun = lambda: None) -> Profile:
    """Run the PEF once for warming up and ``runs`` times for measuring.

    Earlier section types run first if a type needs their results; the result has only the requested ones.

    Raises:
        PefError: the file cannot be used. NoResources: the node has no room.
        InvalidArgument: no such graph or section type, or fewer than one run.
    """
    _check(request)
    kernels = read_pef(request.path).kernels
    with open_application(request.path, _NAME, build=_portable_build(request)) as app:
        device = app.program.device
        limits = (renew_limits if request.renews_limits else load_limits)(app.threads, device=device)
        schedule = schedule_of(app, request)
        measured = _measure(app, kernels, schedule, request.runs, on_run)
        shown = [number for graph, _, wanted in schedule for number in graph.schedule if number in wanted]
        work = [_work_of(app, kernels, number) for number in dict.fromkeys(shown)]
        pef = app.pef
        return Profile(
            path=str(request.path), pef=pef.name, mode=pef.mode, arch=pef.arch, precision=pef.precision,
            graphs=tuple(graph.name for graph, _, _ in schedule), sections=pef.sections, runs=request.runs,
            limits=limits, rows=section_rows(work, measured, limits), outside_s=measured.outside_s,
            last_run=measured.sections[-1],
        )  # fmt: skip


def _portable_build(request: ProfileRequest) -> Callable[[KernelGraph], Kernel] | None:
    """Return the builder of kernels without native libraries, if requested; a GPU never has any."""
    return build_portable if request.is_portable and engine_device().type == "cpu" else None


def profile_operators(request: ProfileRequest, on_run: OnRun = lambda: None) -> tuple[OperatorRow, ...]:
    """Return the same with every kernel as generated ATen code and every operator timed alone, the longest first.

    Raises:
        As ``profile_file``.
    """
    _check(request)
    clock = OperatorClock(engine_device())
    kernels = read_pef(request.path).kernels
    with open_application(request.path, _NAME, build=clock.build) as app:
        schedule = schedule_of(app, request)
        _measure(app, kernels, schedule, request.runs, on_run, clock.reset)
        return clock.rows(app.pef, request.runs)


#: A graph, the sections to run in order, and those to show.
Scheduled = tuple[Graph, tuple[int, ...], frozenset[int]]


def schedule_of(app: Application, request: ProfileRequest) -> list[Scheduled]:
    """Return each graph with the sections up to the last wanted one, which may read results of earlier ones."""
    program = app.program
    graphs = list(app.pef.main_graphs()) if request.graph is None else [program.find_graph(request.graph)]
    found: list[Scheduled] = []
    for graph in graphs:
        wanted = program.choose_sections(graph, request.types)
        if not wanted:
            continue
        last = max(graph.schedule.index(number) for number in wanted)
        found.append((graph, graph.schedule[: last + 1], frozenset(wanted)))
    if not found:
        present = sorted({app.pef.sections[n].type.value for graph in graphs for n in graph.schedule})
        raise InvalidArgument(f"there is no section of type {', '.join(request.types or ())}; expected {present}")
    return found


def _measure(
    app: Application, kernels: Mapping[str, KernelGraph], schedule: list[Scheduled], runs: int, on_run: OnRun,
    on_warm: OnRun = lambda: None,
) -> Measured:  # fmt: skip
    program = app.program
    fill_program(program, kernels)
    run_once(app, schedule)
    on_warm()
    sections: list[tuple[tuple[int, float], ...]] = []
    run_s: list[float] = []
    for _ in range(runs):
        taken: list[tuple[int, float]] = []
        program.section_seconds = taken
        began = time.perf_counter()
        try:
            run_once(app, schedule)
        finally:
            program.section_seconds = None
        run_s.append(time.perf_counter() - began)
        sections.append(tuple(taken))
        on_run()
    return Measured(tuple(sections), tuple(run_s))


def run_once(app: Application, schedule: list[Scheduled]) -> None:
    """Run each graph's sections once."""
    for graph, ran, _ in schedule:
        app.run(graph.name, ran, app.pef.hyperparameters)


def _work_of(app: Application, kernels: Mapping[str, KernelGraph], number: int) -> SectionWork:
    section = app.pef.sections[number]
    kernel = kernels[section.kernel]
    form = "native" if section.kernel in app.native_digests else "portable"
    return SectionWork(section, form, limit_dtype(kernel), count_operators(kernel))


def _check(request: ProfileRequest) -> None:
    if request.runs < 1:
        raise InvalidArgument(f"{request.runs} runs; expected 1 or more")


_SEED: Final = 20
_SCALE: Final = 0.05
#: Operators that hand on the same indices.
_SAME_INDICES: Final = frozenset(
    {"aten.view.default", "aten.reshape.default", "aten.unsqueeze.default", "aten.squeeze.dim", "aten.clone.default",
     "aten._unsafe_view.default", "aten.expand.default", "aten.contiguous.default"}
)  # fmt: skip
#: Operators that keep a table's number of rows.
_SAME_ROWS: Final = frozenset(
    {"aten.to.dtype", "aten._to_copy.default", "prims.convert_element_type.default", "aten.clone.default"}
)
_LOOK_UP: Final = "aten.embedding.default"
_LOOK_UP_GRADIENT: Final = "aten.embedding_dense_backward.default"


def fill_program(program: LoadedProgram, kernels: Mapping[str, KernelGraph]) -> None:
    """Overwrite every input, parameter and buffer with such values."""
    bounds = index_bounds(program.pef, kernels)
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for name, symbol in program.pef.symbols.items():
            if symbol.kind not in {SymbolKind.INPUT, SymbolKind.PARAMETER, SymbolKind.BUFFER}:
                continue
            tensor = torch.zeros(symbol.shape, dtype=getattr(torch, symbol.dtype))
            if tensor.is_floating_point():
                tensor.normal_(0, _SCALE, generator=generator)
                if symbol.kind is SymbolKind.BUFFER:
                    tensor.abs_()
            elif tensor.dtype == torch.bool:
                tensor.fill_(True)
            elif bounds.get(name, 0) > 1:
                tensor.random_(0, bounds[name], generator=generator)
            program.write(name, tensor)


def index_bounds(pef: Pef, kernels: Mapping[str, KernelGraph]) -> dict[str, int]:
    """Return symbols that only table look-ups read → the number of rows of the smallest of these tables."""
    found: dict[str, int] = {}
    for section in pef.sections:
        bounds = _kernel_bounds(kernels[section.kernel])
        for name, bound in zip(section.inputs, bounds, strict=True):
            found[name] = min(found.get(name, bound), bound)
    return {name: bound for name, bound in found.items() if bound}


def _kernel_bounds(kernel: KernelGraph) -> list[int]:
    """Return for each input the rows of the smallest table that it indexes; 0 if anything else reads it."""
    readers: dict[str, list[KernelNode]] = {}
    for node in kernel.nodes:
        for name in references([*node.args, *node.kwargs.values()]):
            readers.setdefault(name, []).append(node)
    rows = {spec.name: spec.shape[0] if spec.shape else 0 for spec in kernel.inputs}
    for node in kernel.nodes:
        if node.op in _SAME_ROWS and isinstance(table := node.args[0], Ref):
            rows[node.name] = rows.get(table.name, 0)
    return [_bound_of(spec.name, readers, rows, kernel.outputs) for spec in kernel.inputs]


def _bound_of(
    name: str, readers: Mapping[str, list[KernelNode]], rows: Mapping[str, int], outputs: tuple[str | None, ...]
) -> int:
    if name in outputs or name not in readers:
        return 0
    return min(_rows_read(name, node, readers, rows, outputs) for node in readers[name])


def _rows_read(
    name: str, node: KernelNode, readers: Mapping[str, list[KernelNode]], rows: Mapping[str, int],
    outputs: tuple[str | None, ...],
) -> int:  # fmt: skip
    """Return the bound of the indices called ``name``, by one of their readers."""
    match (node.op, node.args):
        case (op, _) if op in _SAME_INDICES:
            return _bound_of(node.name, readers, rows, outputs)
        case (op, (Ref(table), Ref(indices), *_)) if op == _LOOK_UP and indices == name:
            return rows.get(table, 0)
        case (op, (_, Ref(indices), int(count), *_)) if op == _LOOK_UP_GRADIENT and indices == name:
            return count
    return 0
