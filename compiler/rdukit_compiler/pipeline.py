"""The compile, from a traced graph to a PEF file: the order of the steps, and nothing else.

====  =====================  =========================================================================================
step  what                   leaves true
====  =====================  =========================================================================================
1     check the trace        names unique, defined before use (``passes.checks``); operators that the device lacks are
                             refused, or marked to run on the host
2     assign precision       every value has its device dtype and knows whether a gradient flows through it; weights
                             that are stored in fewer bits have their scales
3     place on chips         where there are several: each operator is one chip's, or the host's
4     cut sections           every operator in exactly one plan; plans convex, in an order that can be run
5     build kernels          per section a forward, and a backward where a gradient flows; optimizer sections
6     cost                   per section resources and projected cycles (in ``passes.assemble``)
7     native kernels         one library per unique kernel, where a C++ compiler is found
8     write                  the PEF, atomically, as the last step
====  =====================  =========================================================================================
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rdukit import __version__
from rdukit.errors import CompileError, RdukitError
from rdukit.files.atomic import write_atomic, write_reports
from rdukit.pef import Pef, write_pef
from rdukit.pef.chips import chip_lines, require_room
from rdukit.pef.debug import DebugLevel, describe_kernel, print_debug
from rdukit.pef.inspect import memory_line
from rdukit.pef.model import NO_EVALUATION, ChipPlan, Section
from rdukit.pef.units import KERNEL_CHECK, KERNELS_LATER, KernelVerdict
from rdukit.system.cpu import native_signature
from rdukit.telemetry.spans import span
from rdukit_compiler.backend.check_natives import choose_judged
from rdukit_compiler.backend.native import NativeBuilder, build_natives, has_native_form
from rdukit_compiler.backend.section_library import NO_FORM, find_cpp_compiler
from rdukit_compiler.capture.lazy_torch_imports import without_dynamo
from rdukit_compiler.capture.signature import call_digests, graph_signature
from rdukit_compiler.chips.cut import cut_over_chips
from rdukit_compiler.chips.place import place_on_chips
from rdukit_compiler.heuristics.choices import load_choices, report_rules
from rdukit_compiler.ir import ModelGraph, ValueKind
from rdukit_compiler.optimizer import OptimizerGroup, check_optimizers
from rdukit_compiler.options import CompileOptions
from rdukit_compiler.passes.assemble import assemble_graph
from rdukit_compiler.passes.assembly import Assembly
from rdukit_compiler.passes.assign_precision import Precision, assign_precision
from rdukit_compiler.passes.checks import check_assembly, check_plans, check_stage
from rdukit_compiler.passes.choose_compute import choose_compute
from rdukit_compiler.passes.cut_sections import SectionPlan, cut_sections
from rdukit_compiler.passes.host_operators import HOST, LOOKS_AT_DATA, choose_host_operators
from rdukit_compiler.passes.join_regions import join_regions
from rdukit_compiler.passes.push_down_slices import push_down_slices
from rdukit_compiler.passes.quantize_weights import quantize_weights
from rdukit_compiler.passes.section_cache import SectionCache, open_section_store
from rdukit_compiler.reports import (
    Reporter,
    artifact_files,
    describe_choices,
    describe_graph,
    describe_plans,
    projection_line,
)


@dataclass(frozen=True, slots=True)
class TracedGraph:
    """A graph to compile, with the optimizers that train it; none for inference.

    ``evaluates``: name of the training graph, for an evaluation graph, which is the last one.
    """

    graph: ModelGraph
    optimizers: tuple[OptimizerGroup, ...] = ()
    evaluates: str = ""


@without_dynamo()
def compile_graphs(graphs: Sequence[TracedGraph], options: CompileOptions, reporter: Reporter) -> Path:
    """Compile the traced graphs into one PEF at ``options.pef_path``.

    Returns:
        The path, at which there is no file until the compile has succeeded.
    Raises:
        CompileError: the model cannot be compiled; also its subclasses. InvalidArgument: an option is not valid.
    """
    options.check()
    with NativeBuilder() as builder:
        try:
            return _compile(graphs, options, reporter, builder)
        except (RdukitError, OSError, MemoryError):
            raise
        except Exception as cause:
            names = ", ".join(traced.graph.name for traced in graphs)
            raise CompileError(
                f"internal: compiling {names} failed: {type(cause).__name__}: {cause}; this is a defect of the "
                "compiler, not of the model; another mode (--o0) may work"
            ) from cause


def _compile(
    graphs: Sequence[TracedGraph], options: CompileOptions, reporter: Reporter, builder: NativeBuilder
) -> Path:  # fmt: skip
    store = open_section_store()
    assembly = Assembly(cache=SectionCache(store))
    if _wants_natives(options):
        assembly.cache.on_new = builder.warm
    tables = {}
    all_plans: list[SectionPlan] = []
    with span("choose operators and dtypes"):
        graphs, chosen, metadata = _choose_all(graphs, options, reporter)
    precision = Precision(options.base_precision, not options.inference)
    typed_graphs = join_regions([typed for _, typed in chosen], options.regions, precision)
    for (_, before), typed in zip(chosen, typed_graphs, strict=True):
        check_stage(typed, "join_regions", before, precision)
    if options.weight_dtype:
        joined, typed_graphs = typed_graphs, quantize_weights(typed_graphs, options.weight_dtype)
        for before, typed in zip(joined, typed_graphs, strict=True):
            check_stage(typed, "quantize_weights", before, precision)
    if options.chips > 1:
        whole, typed_graphs = typed_graphs, place_on_chips(typed_graphs, options)
        for before, typed in zip(whole, typed_graphs, strict=True):
            check_stage(typed, "place_on_chips", before, precision)
            for name, why in typed.replicated.items():
                reporter.info(f"not divided: {name}: {why}")
    reporter.phase("cutting sections")
    choices = load_choices(options, typed_graphs)
    for traced, (graph, _), typed in zip(graphs, chosen, typed_graphs, strict=True):
        with span("cut sections", {"rdukit.graph": graph.name}):
            plans = cut_over_chips(typed, choices)
        for why in dict.fromkeys(_host_warning(plan) for plan in plans if plan.heuristic == HOST):
            reporter.warning(why)
        check_plans(typed, plans)
        _explain(traced.graph, typed, plans)
        all_plans.extend(plans)
        optimizers = () if options.inference else traced.optimizers
        assembly.cache.on_built = _counter(reporter, f"sections of {graph.name}", len(plans))
        with span("assemble sections", {"rdukit.graph": graph.name, "rdukit.sections": len(plans)}):
            table = assemble_graph(assembly, graph, typed, plans, optimizers, options)
        tables[graph.name] = replace(table, evaluates=traced.evaluates)
    report_rules(choices, typed_graphs, all_plans, reporter)
    if store is not None:
        store.trim()
    step = {number for table in tables.values() if not table.evaluates for number in table.schedule}
    reporter.info(projection_line([section for section in assembly.sections if section.id in step]))
    with span("build native kernels", {"rdukit.kernels": len(assembly.kernels)}):
        natives, verdicts = _build_natives(assembly, options, reporter, builder)
    if verdicts:
        metadata = {**metadata, KERNEL_CHECK: verdicts}
    if not options.builds_kernels:
        metadata = {**metadata, KERNELS_LATER: True}
    pef = Pef(
        name=options.name,
        mode=options.mode,
        arch=options.chip.name,
        num_tiles=options.tiles * options.chips,
        precision=options.precision,
        inference=options.inference,
        compiler_version=__version__,
        torch_version=torch.__version__,
        cpu_capability=native_signature() if natives else "",
        graphs=tables,
        symbols=assembly.symbols,
        sections=tuple(assembly.sections),
        hyperparameters=assembly.hyperparameters,
        signature={
            t.graph.name: {**graph_signature(t.graph, t.optimizers), "calls": call_digests(t.graph)} for t in graphs
        },
        metadata=metadata,
        chips=_chip_plan(assembly, typed_graphs, options),
    )
    check_assembly(pef, assembly.kernels)
    if not options.is_plan:
        require_room(pef)
    for digest, kernel in assembly.kernels.items():
        form = "native" if digest in natives else "portable"
        print_debug(DebugLevel.KERNELS, f"kernel {digest[:12]}, {form}", partial(describe_kernel, kernel))
    reporter.phase("writing the PEF")
    write_atomic(_beside(options.pef_path, ".sections.txt"), describe_plans(all_plans).encode())
    reports = artifact_files(options.pef_path.stem, assembly.sections, options.chip, assembly.stages)
    write_reports(options.pef_path.parent, reports)
    with span("write PEF"):
        write_pef(options.pef_path, pef, assembly.kernels, natives)
    for line in (memory_line(pef), *chip_lines(pef)):
        reporter.info(line)
    reporter.info("Compilation succeeded.")
    reporter.info("Mac Compilation succeeded.")
    reporter.info(f"PEF file {options.pef_path} created")
    return options.pef_path


def _chip_plan(assembly: Assembly, graphs: Sequence[ModelGraph], options: CompileOptions) -> ChipPlan | None:
    if options.chips == 1:
        return None
    places = assembly.places
    replicated = {name: why for graph in graphs for name, why in graph.replicated.items()}
    return ChipPlan(
        options.chips, options.parallel, tuple(places.sections), places.follows, tuple(places.divided), replicated
    )


def _explain(traced: ModelGraph, typed: ModelGraph, plans: Sequence[SectionPlan]) -> None:
    """Print the level of ``RDUKIT_DEBUG``: a graph before and after its dtypes were chosen, and its sections."""
    name = typed.name
    print_debug(DebugLevel.GRAPH, f"graph {name}, as traced", lambda: describe_graph(traced))
    print_debug(DebugLevel.GRAPH, f"graph {name}, on the device", lambda: describe_graph(typed))
    print_debug(DebugLevel.FUSIONS, f"sections of {name}", lambda: describe_plans(plans))
    print_debug(DebugLevel.CHOICES, f"choices for {name}", lambda: describe_choices(plans))


def _choose_all(
    graphs: Sequence[TracedGraph], options: CompileOptions, reporter: Reporter
) -> tuple[Sequence[TracedGraph], list[tuple[ModelGraph, ModelGraph]], dict[str, Any]]:
    """Call ``_choose`` for each graph; an evaluation graph that cannot be compiled is left out, with a warning.

    Returns:
        The remaining graphs, the choices for them, and the PEF's metadata, which has the reason for a missing one.
    """
    kept, chosen, metadata = [], [], dict(options.metadata)
    for traced in graphs:
        try:
            chosen.append(_choose(traced, options, reporter))
        except CompileError as why:
            if not traced.evaluates:
                raise
            reporter.warning(f"the PEF gets no evaluation graph: {why.message}; after model.eval() it will not run")
            metadata[NO_EVALUATION] = why.message
        else:
            kept.append(traced)
    return kept, chosen, metadata


def _choose(traced: TracedGraph, options: CompileOptions, reporter: Reporter) -> tuple[ModelGraph, ModelGraph]:
    """Decide where and in which dtype each operator runs; return the graph with the program's and with device
    dtypes.
    """
    graph = traced.graph
    reporter.info(f"Mapping for graph/function: {graph.name}_samba")
    reporter.phase(f"dtypes of {graph.name}")
    check_stage(graph, "trace")
    marked = choose_host_operators(graph, options.host_fallback)
    check_stage(marked, "choose_host_operators", graph)
    sliced = push_down_slices(marked)
    check_stage(sliced, "push_down_slices", marked)
    check_optimizers(traced.optimizers, {v.name: v for v in sliced.of_kind(ValueKind.PARAMETER)})
    chosen = choose_compute(sliced, options.precision, options.graphamp, options.mixed_precision_families)
    check_stage(chosen, "choose_compute", sliced)
    precision = Precision(options.base_precision, not options.inference)
    typed = assign_precision(chosen, precision)
    check_stage(typed, "assign_precision", chosen, precision)
    return chosen, typed


def _host_warning(plan: SectionPlan) -> str:
    """Return a host section's warning; a guard's has no section name, because every layer may have one."""
    return plan.why if plan.why.startswith(LOOKS_AT_DATA) else f"section {plan.name}: {plan.why}"


def _wants_natives(options: CompileOptions) -> bool:
    """Return whether to build native kernels: O0 runs portably, each operator by itself."""
    return options.builds_kernels and options.kernels != "portable" and options.mode != "o0"


def _build_natives(
    assembly: Assembly, options: CompileOptions, reporter: Reporter, builder: NativeBuilder
) -> tuple[dict[str, bytes], dict[str, str]]:  # fmt: skip
    """Return native libraries for O1 and O3, built or from the cache, and the kernel check's verdict on each kernel."""
    if not _wants_natives(options):
        return {}, {}
    has_compiler = find_cpp_compiler() is not None
    wanted = sum(has_native_form(kernel) for kernel in assembly.kernels.values())
    count = _counter(reporter, "kernels", wanted)

    def on_built(digest: str, error: str | None) -> None:
        count()
        if error:
            say = reporter.info if error.startswith(NO_FORM) else reporter.warning
            say(f"kernel {digest[:12]} runs from generated operator code: {error}")

    def on_judged(verdict: KernelVerdict, number: int, total: int) -> None:
        reporter.progress("kernels checked", number, total)
        if not verdict.is_right:
            reporter.warning(f"a section runs from generated operator code: {verdict.complaint}")

    built = build_natives(assembly.kernels, on_built, has_compiler, builder)
    natives, verdicts = choose_judged(assembly.sections, assembly.kernels, built, builder, on_judged)
    if len(built) < wanted and not has_compiler:  # the other kernels failed the check, and are not used
        if options.kernels == "native":
            raise CompileError("no C++ compiler was found (g++, or $CXX); install one, or set RDUKIT_KERNELS=portable")
        which = f"{wanted - len(built)} of {wanted} kernels" if built else "sections"
        reporter.info(f"No C++ compiler found: {which} run from generated operator code")
    return natives, verdicts


def _counter(reporter: Reporter, what: str, total: int) -> Callable[[], None]:
    """Report 0 ready items; return a function that reports one more at each call."""
    numbers = itertools.count(1)
    if total:
        reporter.progress(what, 0, total)
    return lambda: reporter.progress(what, next(numbers), total)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.stem + suffix)


def estimate_sections(graphs: Sequence[TracedGraph], options: CompileOptions) -> tuple[Section, ...]:
    """Estimate the graphs' sections in order of their ids, with resources and projected cost; write no file.

    Raises:
        CompileError: the model cannot be compiled. InvalidArgument: an option is not valid.
    """
    options.check()
    cut, assembly = load_choices(options, [traced.graph for traced in graphs]), Assembly()
    for traced in graphs:
        graph = push_down_slices(traced.graph)
        typed = assign_precision(graph, Precision(options.precision, not options.inference))
        optimizers = () if options.inference else traced.optimizers
        assemble_graph(assembly, graph, typed, cut_sections(typed, cut), optimizers, options)
    return tuple(assembly.sections)
