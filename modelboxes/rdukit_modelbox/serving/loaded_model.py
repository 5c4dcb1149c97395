"""A model in a device process: a PEF with a checkpoint's tensors, run on whole batches in shared memory.

Needs the runtime only: neither the program that was compiled nor the SDK. Axes: B the PEF's batch, then the row's.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from rdukit.errors import InvalidArgument
from rdukit.pef import read_pef
from rdukit.pef.model import SymbolKind
from rdukit_modelbox.checkpoints import open_parameters
from rdukit_modelbox.serving.choose_tensors import choose_signature, forward_sections
from rdukit_modelbox.serving.match_parameters import match_parameters
from rdukit_modelbox.serving.signature import TensorSpec
from rdukit_runtime.application import Application, open_application


class LoadedModel:
    """A PEF on leased tiles, ready to run."""

    def __init__(self, name: str, pef: Path, checkpoint: Path | None, serving: Mapping[str, Any]) -> None:
        """Lease, load, upload.

        Args:
            checkpoint: a safetensors file, or a folder that train made; None leaves the parameters zero and is legal
                for a PEF without any.
        Raises:
            PefError, NoResources: the PEF cannot be used here. InvalidArgument: the checkpoint is of another model.
        """
        began = time.perf_counter()
        self._application: Application = open_application(pef, name)
        try:
            found = self._application.pef
            self._program = self._application.program
            self._graph = self._program.find_graph(serving.get("graph"))
            self._sections = forward_sections(found, self._graph)
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
        self._scalars = dict(found.hyperparameters)
        self._memory: memoryview | None = None
        self._inputs: list[torch.Tensor] = []
        self._call: Callable[[], tuple[int, int, int]]
        #: Rows of the last run: what lies behind them in shared memory is zero.
        self._filled = 0

    def bind(self, memory: memoryview) -> None:
        """Take inputs from and put outputs into ``memory``, laid out as ``Signature.offsets`` says."""
        self._memory = memory
        offsets, signature = self.signature.offsets, self.signature
        self._inputs = [_view(memory, offsets[spec.name], spec, signature.batch) for spec in signature.inputs]
        inputs = [(spec.symbol, view) for spec, view in zip(signature.inputs, self._inputs, strict=True)]
        outputs = [
            (spec.symbol, _view(memory, offsets[f"output/{spec.name}"], spec, signature.batch))
            for spec in signature.outputs
        ]
        self._call = self._application.repeated(self._graph.name, self._sections, self._scalars, inputs, outputs)

    def run(self, rows: int) -> tuple[int, int, int]:
        """One batch whose first ``rows`` rows count; the others are zero. Nanoseconds of copying in, computing, out.

        Raises:
            RuntimeFault: the device failed.
        """
        if rows < self._filled:
            for view in self._inputs:
                view[rows : self._filled].zero_()
        self._filled = rows
        return self._call()

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
        "native_kernels": str(application.native_kernels), "threads": str(application.threads),
        "tiles": ",".join(application.lease.tiles), "device": str(application.program.device),
        "load_seconds": f"{seconds:.3f}",
    }  # fmt: skip


def _view(memory: memoryview, offset: int, spec: TensorSpec, rows: int) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, spec.type.torch_name)
    count = rows * spec.row_elements
    if not count:
        return torch.empty((rows, *spec.row_shape), dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(rows, *spec.row_shape)
