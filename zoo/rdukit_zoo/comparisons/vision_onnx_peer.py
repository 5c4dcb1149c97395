"""The peer: ONNX Runtime, on the module exported by torch's own exporter."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn


def find_missing_package() -> str | None:
    """The first package that this peer needs and that is not installed; None if all are."""
    return next((name for name in ("onnxruntime", "onnx", "onnxscript") if find_spec(name) is None), None)


class OnnxRuntime:
    """A module in f32 under ONNX Runtime on the processor, with all of its graph optimisations."""

    def __init__(self, model: nn.Module, image: torch.Tensor, path: Path, threads: int) -> None:
        """Export to ``path`` and load. ``image`` [B, C, Y, X] gives the shape, which is fixed."""
        onnxruntime: Any = import_module("onnxruntime")

        with _quiet():
            torch.onnx.export(model, (image,), str(path), dynamo=True, verbose=False)
        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self._session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._name = self._session.get_inputs()[0].name

    def run(self, image: torch.Tensor) -> torch.Tensor:
        """Logits of ``image``."""
        return torch.from_numpy(self._session.run(None, {self._name: image.numpy()})[0])


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says about itself."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
