"""Place the operators of graphs on several chips: split by batch or weights, or one after the other as a pipeline."""

from collections.abc import Sequence
from dataclasses import replace

from rdukit.errors import InvalidArgument
from rdukit_compiler.chips.pipeline import assign_stages
from rdukit_compiler.chips.split import split_over_chips
from rdukit_compiler.ir import ModelGraph
from rdukit_compiler.options import CompileOptions
from rdukit_compiler.passes.assign_precision import Precision


def place_on_chips(graphs: Sequence[ModelGraph], options: CompileOptions) -> list[ModelGraph]:
    """Return the graphs over ``options.chips`` chips. If there are several graphs, those that cannot be divided are on
    the first chip.

    Raises:
        InvalidArgument: no graph can be divided in this way; the message has the first graph's reason.
    """
    placed: list[ModelGraph] = []
    refused: list[InvalidArgument] = []
    for graph in graphs:
        try:
            placed.append(_place(graph, options))
        except InvalidArgument as why:
            refused.append(why)
            placed.append(replace(graph, chips=options.chips, replicated={graph.name: why.message}))
    if len(refused) == len(graphs):
        raise refused[0]
    return placed


def _place(graph: ModelGraph, options: CompileOptions) -> ModelGraph:
    if options.parallel == "pipeline":
        return assign_stages(graph, options.chips)
    precision = Precision(options.base_precision, not options.inference)
    return split_over_chips(graph, options.parallel, options.chips, precision)
