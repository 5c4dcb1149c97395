"""Which symbols of a PEF are served, under which names: from the box's ``serving`` block, else from the PEF. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit.pef.kernel import KernelGraph
from rdukit.pef.model import NO_EVALUATION, Graph, Pef, SectionType, Symbol, SymbolKind
from rdukit_modelbox.serving.classification import class_count
from rdukit_modelbox.serving.datatypes import BY_TORCH_NAME
from rdukit_modelbox.serving.indices import find_tables
from rdukit_modelbox.serving.signature import Signature, TensorSpec
from rdukit_modelbox.shape import METADATA_KEY, TRAIN, shape_of

#: Format from which on a training PEF has an evaluation graph, where it needs one.
EVALUATES_SINCE: Final = (1, 4)


def forward_sections(pef: Pef, graph: Graph) -> tuple[int, ...]:
    """Ids of the graph's ``fwd`` sections, in schedule order."""
    kinds = {section.id: section.type for section in pef.sections}
    return tuple(number for number in graph.schedule if kinds[number] is SectionType.FWD)


def choose_graphs(pef: Pef, serving: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The graph that serves batches, and the one for one row if there is one; None stands for the PEF's only graph.

    ``serving`` may name the ``graph``; then it is that one alone.
    """
    if serving.get("graph") is not None or METADATA_KEY not in pef.metadata:
        return serving.get("graph"), None
    graphs = shape_of(pef, pef.name).graphs
    return (graphs[max(graphs)], graphs.get(1)) if graphs else (None, None)


def choose_evaluation(pef: Pef, graph: Graph, format_of: Callable[[], tuple[int, int]]) -> Graph:
    """The graph that answers for ``graph``: its evaluation graph, where it has one.

    Args:
        format_of: gives the version of the PEF's format.
    Raises:
        PefMismatch: ``graph`` computes something else when it is not trained, and the PEF has no graph for that.
    """
    if (found := pef.evaluation_of(graph.name)) is not None:
        return found
    if not pef.inference:
        why = str(pef.metadata.get(NO_EVALUATION, ""))
        if why or (_keeps_account(pef, graph) and format_of() < EVALUATES_SINCE):
            raise PefMismatch(
                f"{pef.name} was compiled to train, and has no evaluation graph{f', because {why}' if why else ''}; "
                "to serve it, compile it again, or with purpose=serve"
            )
    return graph


def _keeps_account(pef: Pef, graph: Graph) -> bool:
    """Whether forward drops something out, or updates buffers, as batch norms do with their statistics."""
    bound = {n for number in graph.schedule for n in (*pef.sections[number].inputs, *pef.sections[number].outputs)}
    if not bound.isdisjoint(pef.hyperparameters):
        return True
    made = (name for number in forward_sections(pef, graph) for name in pef.sections[number].outputs)
    return any(pef.symbols[name].kind is SymbolKind.BUFFER for name in made)


def choose_signature(
    pef: Pef, graph: Graph, serving: Mapping[str, Any], properties: Mapping[str, str], labels: Sequence[str] = (),
    read_kernels: Callable[[], Mapping[str, KernelGraph]] | None = None,
) -> Signature:  # fmt: skip
    """The signature of ``graph``.

    ``serving`` may list ``inputs`` and ``outputs`` as ``{"name", "symbol"?}``; a symbol is a name or a position in the
    graph's list. Without it a PEF that a box compiled says which they are; of any other all inputs are served, and all
    outputs that have a batch dimension. ``read_kernels`` gives the PEF's; with them, what indices may be is known.

    Raises:
        InvalidArgument: ``serving`` names a symbol that is not there, or another number of labels than of classes.
        PefMismatch: the served tensors have no batch dimension in common, or a dtype that the protocol lacks.
    """
    known = _compiled_by_a_box(pef, graph)
    inputs = _choose(pef, graph.inputs, serving.get("inputs") or known.get("inputs"), "inputs")
    if not inputs:
        raise PefMismatch(f"graph {graph.name!r} of {pef.name} has no input to serve")
    batch = inputs[0][1].shape[0] if inputs[0][1].shape else 0
    listed = serving.get("outputs") or known.get("outputs")
    outputs = _choose(pef, graph.outputs, listed, "outputs")
    if not listed:
        outputs = [(name, symbol) for name, symbol in outputs if symbol.shape and symbol.shape[0] == batch]
    if not outputs:
        raise PefMismatch(f"graph {graph.name!r} of {pef.name} has no output with the batch dimension {batch}")
    for name, symbol in (*inputs, *outputs):
        if not symbol.shape or symbol.shape[0] != batch:
            raise PefMismatch(
                f"tensor {name!r} has shape {list(symbol.shape)}; served tensors must begin with the same batch "
                f"dimension, here {batch}: list others as not served in the box's serving block"
            )
    limit = serving.get("max_batch_size")
    if limit is not None and not 0 < limit <= batch:
        raise InvalidArgument(f"serving.max_batch_size {limit} is not legal; legal: 1 to {batch}, the PEF's batch")
    served = _specs(outputs)
    _check_labels(served[0], labels)
    integers = [symbol.name for _, symbol in inputs if symbol.host_dtype.startswith("int")]
    tables: Mapping[str, int] = {}
    if read_kernels is not None and integers:
        tables = find_tables(pef, read_kernels(), forward_sections(pef, graph), integers)
    return Signature(_specs(inputs, tables), served, batch, limit or batch, tuple(labels), dict(properties))


def _check_labels(output: TensorSpec, labels: Sequence[str]) -> None:
    classes = class_count(output)
    if labels and len(labels) != classes:
        has = "no classes" if classes is None else f"{classes} classes"
        raise InvalidArgument(
            f"serving.labels has {len(labels)} names, but the first output, {output.name!r} "
            f"{[-1, *output.row_shape]}, has {has}; legal: one name for each"
        )


def _compiled_by_a_box(pef: Pef, graph: Graph) -> Mapping[str, Any]:
    """What its metadata says: outputs by name without the loss; of a classifier that can train, not the label."""
    if METADATA_KEY not in pef.metadata:
        return {}
    shape = shape_of(pef, pef.name)
    outputs = [{"name": name, "symbol": str(at)} for at, name in enumerate(shape.outputs) if name != "loss"]
    takes_label = shape.purpose == TRAIN and shape.task == "classification"
    inputs = [{"name": name} for name in (graph.inputs[:1] if takes_label else graph.inputs)]
    return {"inputs": inputs, "outputs": outputs}


def _choose(
    pef: Pef, names: Sequence[str], listed: Sequence[Mapping[str, Any]] | None, what: str
) -> list[tuple[str, Symbol]]:
    if not listed:
        return [(name, pef.symbols[name]) for name in names]
    chosen = []
    for entry in listed:
        symbol = entry.get("symbol")
        if symbol is None:
            symbol = entry["name"]
        if str(symbol).isdecimal() and int(symbol) < len(names):
            symbol = names[int(symbol)]
        if symbol not in names:
            raise InvalidArgument(
                f"serving.{what}: {symbol!r} is no {what[:-1]} of the PEF; legal: {', '.join(names)}, "
                f"or 0 to {len(names) - 1}"
            )
        found = pef.symbols[symbol]
        own = BY_TORCH_NAME.get(found.host_dtype)
        if entry.get("datatype") and own is not None and entry["datatype"] != own.name:
            raise InvalidArgument(
                f"serving.{what}: {entry['name']!r} is {own.name} in the PEF; {entry['datatype']} is not legal"
            )
        chosen.append((entry["name"], found))
    return chosen


def _specs(tensors: Sequence[tuple[str, Symbol]], tables: Mapping[str, int] | None = None) -> tuple[TensorSpec, ...]:
    specs = []
    for name, symbol in tensors:
        datatype = BY_TORCH_NAME.get(symbol.host_dtype)
        if datatype is None:
            raise PefMismatch(
                f"tensor {name!r} is {symbol.host_dtype}, which the Open Inference Protocol lacks; "
                f"legal: {', '.join(BY_TORCH_NAME)}"
            )
        specs.append(TensorSpec(name, datatype.name, symbol.shape[1:], symbol.name, (tables or {}).get(symbol.name)))
    return tuple(specs)
