"""A model in a device process: a PEF with a checkpoint's tensors, run on whole batches in shared memory.

Needs the runtime only: neither the program that was compiled nor the SDK. Axes: B the PEF's batch, then the row's.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from rdukit.errors import InvalidArgument
from rdukit.pef import read_pef
from rdukit.pef.model import Graph, SymbolKind
from rdukit_modelbox.checkpoints import open_parameters
from rdukit_modelbox.serving.choose_tensors import (
    choose_evaluation,
    choose_graphs,
    choose_signature,
    forward_sections,
)
from rdukit_modelbox.serving.match_parameters import match_parameters
from rdukit_modelbox.serving.signature import TensorSpec
from rdukit_runtime.application import Application, open_application
from rdukit_runtime.engine.program import HostTensors, RunTimes

#: Calls by which a graph's time is measured when it is loaded, and the seconds after which there is no further one.
MEASURED_CALLS: Final = 8
MEASURE_S: Final = 0.1


class LoadedModel:
    """A PEF on leased tiles, ready to run."""

    def __init__(self, name: str, pef: Path, checkpoint: Path | None, serving: Mapping[str, Any]) -> None:
        """Lease, load, upload.

        Args:
            checkpoint: a safetensors file, or a folder that train made; None leaves the parameters zero and is legal
                for a PEF without any.
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
            self._upload(checkpoint)
            self.signature = choose_signature(
                found,
                self._graph,
                serving,
                properties_of(self._application, time.perf_counter() - began),
                serving.get("labels") or (),
                lambda: read_pef(pef).kernels,
            )
        except BaseException:
            self._application.close()
            raise
        self._memory: memoryview | None = None
        self._inputs: list[torch.Tensor] = []
        self._call: Callable[[], RunTimes]
        #: A call for each row that may be run by itself: so many rows are done sooner so than as a batch.
        self._row_calls: list[Callable[[], RunTimes]] = []
        #: Rows that have been filled: what lies behind them in shared memory is zero.
        self._filled = 0

    def bind(self, memory: memoryview) -> None:
        """Take inputs from and put outputs into ``memory``, laid out as ``Signature.offsets`` says; run once."""
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
        """One batch whose first ``rows`` rows count; the others are zero. Nanoseconds of copying in, computing, out.

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
        """A call that runs ``graph`` on tensors in the order of the signature."""
        served, pef = self._graph, self._application.pef
        return self._application.repeated(
            graph.name, forward_sections(pef, graph), dict(pef.hyperparameters),
            _in_graph(self.signature.inputs, served.inputs, graph.inputs, inputs),
            _in_graph(self.signature.outputs, served.outputs, graph.outputs, outputs),
        )  # fmt: skip

    def close(self) -> None:
        """Release the lease."""
        self._application.close()

    def _upload(self, checkpoint: Path | None) -> None:
        pef = self._application.pef
        if checkpoint is None:
            parameters = [s.name for s in pef.symbols.values() if s.kind is SymbolKind.PARAMETER]
            if parameters:
                raise InvalidArgument(
                    f"{pef.name} has {len(parameters)} parameters: name a checkpoint to serve it with"
                )
            return
        with open_parameters(checkpoint) as stored:
            for name, symbol in match_parameters(pef, stored.names).items():
                self._program.write(symbol, stored.read(name))


def properties_of(application: Application, seconds: float) -> dict[str, str]:
    """What people want to know about a loaded PEF; ``seconds`` is how long loading took."""
    pef = application.pef
    return {
        "chip": pef.arch, "mode": pef.mode, "precision": pef.precision, "compiler": pef.compiler_version,
        "native_kernels": str(application.native_kernels), "kernels": application.kernels_told,
        "threads": str(application.threads),
        "tiles": ",".join(application.lease.tiles), "device": str(application.program.device),
        "load_seconds": f"{seconds:.3f}",
    }  # fmt: skip


def rows_run_alone(batch_s: float, row_s: float, batch: int) -> int:
    """So many rows take no longer one by one than as a batch, of which there is at least one. Pure.

    Args:
        batch_s, row_s: seconds of a run of the graph for ``batch`` rows, and of the one for one row.
    """
    return min(max(1, int(batch_s / row_s)), batch)


def _seconds(call: Callable[[], RunTimes]) -> float:
    """How long it takes when everything is in place and nothing comes between: the least of some times."""
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
    specs: Sequence[TensorSpec], served: Sequence[str], own: Sequence[str], views: Sequence[torch.Tensor]
) -> HostTensors:
    """Views by a graph's own symbols, which stand where those of the served graph do."""
    return [(own[served.index(spec.symbol)], view) for spec, view in zip(specs, views, strict=True)]


def _view(memory: memoryview, offset: int, spec: TensorSpec, rows: int) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, spec.type.torch_name)
    count = rows * spec.row_elements
    if not count:
        return torch.empty((rows, *spec.row_shape), dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(rows, *spec.row_shape)
