"""A model in a device process: a PEF with a checkpoint's tensors, run on whole batches in shared memory.

Needs the runtime only: neither the program that was compiled nor the SDK. Axes: B the PEF's batch, then the row's.

Shapes are static, so a run computes the whole batch, however few rows are filled. A PEF that serves batches therefore
has a second graph, for one row, which shares the parameters and adds little to the compile. A lone row takes it. Few
rows run one by one if that was faster when the model was loaded. A graph for each batch size would cost compile time,
and dynamic shapes have no static memory plan.

``bind`` checks sections and tensors once. A run then only copies, makes one native call and counts; per-run checks, as
in programs, would halve the requests a second. To change shapes or tensors, bind again.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit.pef import read_pef
from rdukit.pef.file import BOX_KEY
from rdukit.pef.kernel import KernelGraph
from rdukit.pef.model import NO_EVALUATION, Graph, Pef, Symbol, SymbolKind
from rdukit_runtime.application import Application, open_application
from rdukit_runtime.engine.device import return_freed_memory
from rdukit_runtime.engine.program import HostTensors, RunTimes
from rdukit_serving.checks import class_count, find_tables, forward_sections
from rdukit_serving.device.parameters import (
    check_stored_ties,
    match_parameters,
    open_parameters,
    read_constants,
)
from rdukit_serving.shape import TRAIN, shape_of
from rdukit_serving.signature import BY_TORCH_NAME, ServedSignature, ServedTensor

#: Calls that time a graph at its load, and the seconds after which no further call begins.
MEASURED_CALLS: Final = 8
MEASURE_S: Final = 0.1


class LoadedModel:
    """PEF on leased tiles, ready to run."""

    def __init__(self, name: str, pef: Path, checkpoint: Path | None, serving: Mapping[str, Any]) -> None:
        """Lease tiles, load the PEF and upload its parameters.

        Args:
            checkpoint: a safetensors file, or a folder that train made; None: the parameters stay zero, which only a
                PEF without parameters allows.
        Raises:
            PefError, NoResources: the PEF cannot be used here; PefMismatch: it can train and not evaluate.
                InvalidArgument: the checkpoint is of another model.
        """
        began = time.perf_counter()
        self._application: Application = open_application(pef, name)
        try:
            found = self._application.pef
            self._program = self._application.program
            batches, row = choose_graphs(found, serving)
            self._graph = choose_evaluation(
                found, self._program.find_graph(batches), lambda: read_pef(pef).format_version
            )
            self._row_graph = None if row is None else self._program.find_graph(row)
            #: Names of classes in the checkpoint.
            self._classes: tuple[str, ...] = ()
            self._upload(checkpoint)
            return_freed_memory()
            self.signature = choose_signature(
                found,
                self._graph,
                serving,
                properties_of(self._application, time.perf_counter() - began),
                self._labels(serving.get("labels") or ()),
                lambda: read_pef(pef).kernels,
            )
        except BaseException:
            self._application.close()
            raise
        self._memory: memoryview | None = None
        self._inputs: list[torch.Tensor] = []
        self._call: Callable[[], RunTimes]
        #: One call per row that may run alone. Up to that many rows are faster by these calls than as a batch.
        self._row_calls: list[Callable[[], RunTimes]] = []
        #: Number of rows that have been filled: the rows after them in shared memory are zero.
        self._filled = 0

    def bind(self, memory: memoryview) -> None:
        """Bind inputs and outputs to ``memory``, laid out as ``ServedSignature.offsets`` says; run once."""
        self._memory = memory
        offsets, signature = self.signature.offsets, self.signature
        self._inputs = [_view(memory, offsets[spec.name], spec, signature.batch) for spec in signature.inputs]
        outputs = [_view(memory, offsets[f"output/{spec.name}"], spec, signature.batch) for spec in signature.outputs]
        self._call = self._repeated(self._graph, self._inputs, outputs)
        if self._row_graph is None:
            self._call()
            return
        calls = [self._row_call(self._row_graph, outputs, 0)]
        count = rows_run_alone(_seconds(self._call), _seconds(calls[0]), signature.batch)
        self._row_calls = calls + [self._row_call(self._row_graph, outputs, at) for at in range(1, count)]

    def run(self, rows: int) -> RunTimes:
        """Run a batch of ``rows`` rows, then zeros; return nanoseconds of copying in, computing, copying out.

        Raises:
            RuntimeFault: the device failed.
        """
        if rows == 1 and self._row_calls:
            self._filled = self._filled or 1
            return self._row_calls[0]()
        if 1 < rows <= len(self._row_calls):
            self._filled = max(self._filled, rows)
            copied_in, computed, copied_out = zip(*(call() for call in self._row_calls[:rows]), strict=True)
            return sum(copied_in), sum(computed), sum(copied_out)
        if rows < self._filled:
            for view in self._inputs:
                view[rows : self._filled].zero_()
        self._filled = rows
        return self._call()

    def _row_call(self, graph: Graph, outputs: Sequence[torch.Tensor], at: int) -> Callable[[], RunTimes]:
        row = slice(at, at + 1)
        return self._repeated(graph, [view[row] for view in self._inputs], [view[row] for view in outputs])

    def _repeated(
        self, graph: Graph, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> Callable[[], RunTimes]:
        """Return a call that runs ``graph`` on tensors in the order of the signature."""
        served, pef = self._graph, self._application.pef
        return self._application.repeated(
            graph.name, forward_sections(pef, graph), dict(pef.hyperparameters),
            _in_graph(self.signature.inputs, served.inputs, graph.inputs, inputs),
            _in_graph(self.signature.outputs, served.outputs, graph.outputs, outputs),
        )  # fmt: skip

    def close(self) -> None:
        """Release the lease."""
        self._application.close()

    def _labels(self, named: Sequence[str]) -> Sequence[str]:
        """Return the names of classes: ``named``, which must equal the checkpoint's, or the latter."""
        if named and self._classes and tuple(named) != self._classes:
            raise InvalidArgument(
                f"classes: {', '.join(self._classes)} in the checkpoint, {', '.join(named)} in the box's "
                "serving.labels; use the checkpoint's class names in its order, or leave out serving.labels"
            )
        return named or self._classes

    def _upload(self, checkpoint: Path | None) -> None:
        pef = self._application.pef
        for symbol, value in read_constants(pef).items():
            self._program.write(symbol, value)
        if checkpoint is None:
            parameters = [s.name for s in pef.symbols.values() if s.kind is SymbolKind.PARAMETER]
            if parameters:
                raise InvalidArgument(
                    f"{pef.name} has {len(parameters)} parameters; name a checkpoint that contains them"
                )
            return
        shape = shape_of(pef, pef.name) if BOX_KEY in pef.metadata else None
        with open_parameters(checkpoint, wanted=shape) as stored:
            if shape is not None:
                check_stored_ties(shape.tensors, stored)
            self._classes = stored.identity.classes if stored.identity is not None else ()
            for name, symbol in match_parameters(pef, stored.names).items():
                self._program.write(symbol, stored.read(name))


def properties_of(application: Application, seconds: float) -> dict[str, str]:
    """Describe a loaded PEF for people; ``seconds`` is the loading time."""
    pef = application.pef
    return {
        "chip": pef.arch, "mode": pef.mode, "precision": pef.precision, "compiler": pef.compiler_version,
        "native_kernels": str(application.native_kernels), "kernels": application.kernels_told,
        "threads": str(application.threads),
        "tiles": ",".join(application.lease.tiles), "device": str(application.program.device),
        "load_seconds": f"{seconds:.3f}",
    }  # fmt: skip


def rows_run_alone(batch_s: float, row_s: float, batch: int) -> int:
    """Return the largest number of rows that take no longer one by one than as a batch; at least one. Pure.

    Args:
        batch_s, row_s: seconds of a run of the graph for ``batch`` rows, and of the one for one row.
    """
    return min(max(1, int(batch_s / row_s)), batch)


def _seconds(call: Callable[[], RunTimes]) -> float:
    """Return the least of some times of a call: everything is in place and nothing comes between."""
    call()
    least, ends = math.inf, time.perf_counter() + MEASURE_S
    for _ in range(MEASURED_CALLS):
        began = time.perf_counter()
        call()
        now = time.perf_counter()
        least = min(least, now - began)
        if now > ends:
            break
    return least


def _in_graph(
    specs: Sequence[ServedTensor], served: Sequence[str], own: Sequence[str], views: Sequence[torch.Tensor]
) -> HostTensors:
    """Return views by a graph's own symbols, each at the place of the served graph's symbol."""
    return [(own[served.index(spec.symbol)], view) for spec, view in zip(specs, views, strict=True)]


def _view(memory: memoryview, offset: int, spec: ServedTensor, rows: int) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, spec.type.torch_name)
    count = rows * spec.row_elements
    if not count:
        return torch.empty((rows, *spec.row_shape), dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(rows, *spec.row_shape)


#: First format in which a training PEF may have an evaluation graph.
EVALUATES_SINCE: Final = (1, 4)


def choose_graphs(pef: Pef, serving: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the graph for batches and the one for one row, if any; None means the PEF's only graph.

    ``serving`` may name the ``graph``; then it is that one alone.
    """
    if serving.get("graph") is not None or BOX_KEY not in pef.metadata:
        return serving.get("graph"), None
    graphs = shape_of(pef, pef.name).graphs
    return (graphs[max(graphs)], graphs.get(1)) if graphs else (None, None)


def choose_evaluation(pef: Pef, graph: Graph, format_of: Callable[[], tuple[int, int]]) -> Graph:
    """Return the evaluation graph of ``graph``, or ``graph`` if it has none.

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
                "compile it again, or with purpose=serve"
            )
    return graph


def _keeps_account(pef: Pef, graph: Graph) -> bool:
    """Return whether forward drops something out, or updates buffers, as batch norms do."""
    bound = {n for number in graph.schedule for n in (*pef.sections[number].inputs, *pef.sections[number].outputs)}
    if not bound.isdisjoint(pef.hyperparameters):
        return True
    made = (name for number in forward_sections(pef, graph) for name in pef.sections[number].outputs)
    return any(pef.symbols[name].kind is SymbolKind.BUFFER for name in made)


def choose_signature(
    pef: Pef, graph: Graph, serving: Mapping[str, Any], properties: Mapping[str, str], labels: Sequence[str] = (),
    read_kernels: Callable[[], Mapping[str, KernelGraph]] | None = None,
) -> ServedSignature:  # fmt: skip
    """Return the signature of ``graph``.

    ``serving`` may list ``inputs`` and ``outputs`` as ``{"name", "symbol"?}``; a symbol is a name or a position in the
    graph's list. Without it, a PEF of a box names its tensors; any other PEF serves all inputs, and all outputs with a
    batch dimension. ``read_kernels`` returns the PEF's kernels, from which the limits of indices follow.

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
                f"dimension, here {batch}; exclude others in the box's serving block"
            )
    limit = serving.get("max_batch_size")
    if limit is not None and not 0 < limit <= batch:
        raise InvalidArgument(f"serving.max_batch_size {limit} is not valid; expected 1 to {batch}, the PEF's batch")
    served = _specs(outputs)
    _check_labels(served[0], labels)
    integers = [symbol.name for _, symbol in inputs if symbol.host_dtype.startswith("int")]
    tables: Mapping[str, int] = {}
    if read_kernels is not None and integers:
        tables = find_tables(pef, read_kernels(), forward_sections(pef, graph), integers)
    return ServedSignature(_specs(inputs, tables), served, batch, limit or batch, tuple(labels), dict(properties))


def _check_labels(output: ServedTensor, labels: Sequence[str]) -> None:
    classes = class_count(output)
    if labels and len(labels) != classes:
        has = "no classes" if classes is None else f"{classes} classes"
        raise InvalidArgument(
            f"serving.labels has {len(labels)} names, but the first output, {output.name!r} "
            f"{[-1, *output.row_shape]}, has {has}; expected one name for each"
        )


def _compiled_by_a_box(pef: Pef, graph: Graph) -> Mapping[str, Any]:
    """Read metadata: outputs by name, without the loss, and without the label of a trainable classifier."""
    if BOX_KEY not in pef.metadata:
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
                f"serving.{what}: {symbol!r} is no {what[:-1]} of the PEF; expected {', '.join(names)}, "
                f"or 0 to {len(names) - 1}"
            )
        found = pef.symbols[symbol]
        own = BY_TORCH_NAME.get(found.host_dtype)
        if entry.get("datatype") and own is not None and entry["datatype"] != own.name:
            raise InvalidArgument(
                f"serving.{what}: {entry['name']!r} is {own.name} in the PEF; {entry['datatype']} is not valid"
            )
        chosen.append((entry["name"], found))
    return chosen


def _specs(tensors: Sequence[tuple[str, Symbol]], tables: Mapping[str, int] | None = None) -> tuple[ServedTensor, ...]:
    specs = []
    for name, symbol in tensors:
        datatype = BY_TORCH_NAME.get(symbol.host_dtype)
        if datatype is None:
            raise PefMismatch(
                f"tensor {name!r} is {symbol.host_dtype}, which the Open Inference Protocol lacks; "
                f"expected {', '.join(BY_TORCH_NAME)}"
            )
        specs.append(ServedTensor(name, datatype.name, symbol.shape[1:], symbol.name, (tables or {}).get(symbol.name)))
    return tuple(specs)
