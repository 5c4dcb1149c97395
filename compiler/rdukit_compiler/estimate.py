"""What a compile would project, without native kernels and without a file: for planning and for benchmarks."""

from collections.abc import Sequence

from rdukit.pef.model import Section
from rdukit_compiler.assemble import Assembly, assemble_graph
from rdukit_compiler.choices import load_choices
from rdukit_compiler.options import CompileOptions
from rdukit_compiler.passes.assign_precision import Precision, assign_precision
from rdukit_compiler.passes.cut_sections import cut_sections
from rdukit_compiler.passes.skip_unread_rows import skip_unread_rows
from rdukit_compiler.pipeline import TracedGraph


def estimate_sections(graphs: Sequence[TracedGraph], options: CompileOptions) -> tuple[Section, ...]:
    """Sections of the graphs in order of their ids, with resources and projected cost; nothing is written.

    Raises:
        CompileError: the model cannot be compiled. InvalidArgument: an option is not legal.
    """
    options.check()
    cut, assembly = load_choices(options, [traced.graph for traced in graphs]), Assembly()
    for traced in graphs:
        graph = skip_unread_rows(traced.graph)
        typed = assign_precision(graph, Precision(options.precision, not options.inference))
        optimizers = () if options.inference else traced.optimizers
        assemble_graph(assembly, graph, typed, cut_sections(typed, cut), optimizers, options)
    return tuple(assembly.sections)
