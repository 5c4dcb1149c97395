"""Helpers for tests of the interface and of programs: the slides' two models, and a compile-and-load in one call.

Source of the models: ModelBox and SDK slides, "Sample Code".
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.sambatensor import SambaTensor, unwrap
from sambaflow.tracing.tracer import flatten_tensors


class LogReg(nn.Module):
    """Logistic regression with its loss inside: (inputs [B, F], targets [B]) → (loss [], logits [B, C])."""

    def __init__(self, num_features: int = 16, num_classes: int = 4) -> None:
        super().__init__()
        self.lin_layer = nn.Linear(num_features, num_classes)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.lin_layer(inputs)
        return self.criterion(out, targets), out


class ResFFNLogReg(nn.Module):
    """The slides' residual network: (inputs [B, F], targets [B]) → (loss [], logits [B, C])."""

    def __init__(self, num_features: int = 16, hidden_size: int = 32, num_classes: int = 4) -> None:
        super().__init__()
        self.gemm1 = nn.Linear(num_features, hidden_size, bias=False)
        self.gemm2 = nn.Linear(hidden_size, hidden_size, bias=False)
        self.gemm3 = nn.Linear(hidden_size, num_classes, bias=False)
        self.norm1 = nn.LayerNorm(hidden_size)
        self.norm2 = nn.LayerNorm(hidden_size)
        self.tanh1 = nn.Tanh()
        self.sigmoid1 = nn.Sigmoid()
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.gemm1(inputs)
        out = self.norm1(out)
        out = self.tanh1(out)
        residual = out
        out = self.gemm2(out)
        out = self.norm2(out)
        out = out + residual
        out = self.sigmoid1(out)
        out = self.gemm3(out)
        return self.criterion(out, targets), out


def classifier_inputs(batch: int = 8, features: int = 16, classes: int = 4) -> tuple[SambaTensor, SambaTensor]:
    """Return ``image`` [batch, features] float32 and ``label`` [batch] int64."""
    return (
        samba.randn(batch, features, name="image", batch_dim=0),
        samba.randint(classes, (batch,), name="label", batch_dim=0),
    )


@dataclass(slots=True)
class Loaded:
    """A model that is compiled, traced and on the device."""

    model: Any
    inputs: Any
    optimizer: Any
    pef: str
    outputs: tuple[SambaTensor, ...]

    def run(self, **arguments: Any) -> list[SambaTensor]:
        """Call ``samba.session.run`` on this model's inputs and all its outputs, unless given."""
        arguments = {"input_tensors": self.inputs, "output_tensors": self.outputs, **arguments}
        return samba.session.run(**arguments)


def compile_model(model: nn.Module, inputs: Any, optimizer: Any, folder: Path, **config: Any) -> str:
    """Convert and compile, quietly; returns the PEF's path. ``config`` are options of the command line."""
    samba.from_torch_model_(model)
    options = {"output_folder": str(folder / "out"), "pef_name": "model", "log_level": "error", **config}
    return samba.session.compile(model, inputs, optimizer, config_dict=options)


def load_model(
    model: nn.Module, inputs: Any, folder: Path, optimizer: Callable[[Any], Any] | None = None, *,
    trace: dict[str, Any] | None = None, **config: Any,
) -> Loaded:  # fmt: skip
    """Compile ``model`` and trace it onto the device.

    Args:
        optimizer: makes the optimizer from the model's parameters; None compiles for inference. trace: keyword
            arguments of ``trace_graph``. config: options of the command line, such as ``optim_level="o1"``.
    """
    samba.from_torch_model_(model)
    made = optimizer(model.parameters()) if optimizer is not None else None
    pef = compile_model(model, inputs, made, folder, **config)
    outputs = utils.trace_graph(model, inputs, made, pef=pef, **(trace or {}))
    return Loaded(model, inputs, made, pef, outputs)


def compare_step(
    model: nn.Module, inputs: Any, folder: Path, *, reference: nn.Module | None = None, tolerance: float = 1e-5,
    precision: str = "f32", steps: int = 1, **config: Any,
) -> Loaded:  # fmt: skip
    """Run forward and backward on the device and in eager torch, ``steps`` times, and compare what each step leaves.

    Outputs, gradients of parameters and of inputs that require one (``None`` where torch has none), and buffers must
    agree within ``tolerance``, absolute and relative. Floating outputs are seeded with ones.

    Args:
        inputs: forward's arguments, SambaTensors. reference: the same model for eager torch; a copy unless given.
    """
    reference = copy.deepcopy(model) if reference is None else reference
    loaded = load_model(
        model, inputs, folder, lambda p: samba.optim.SGD(p, lr=0.0), precision=precision,
        trace={"loss_indices": range(64)}, **config,
    )  # fmt: skip
    for _ in range(steps):
        _compare_step(loaded, model, reference, inputs, tolerance)
    samba.session.to_cpu(model)
    buffers = dict(reference.named_buffers())
    for name, buffer in model.named_buffers():
        _compare(f"buffer {name}", buffer, buffers[name], tolerance)
    return loaded


def _compare_step(loaded: Loaded, model: nn.Module, reference: nn.Module, inputs: Any, tolerance: float) -> None:
    reference.zero_grad()
    found = [output.torch_tensor() for output in loaded.run()]
    given = [t.torch_tensor().detach().clone().requires_grad_(t.requires_grad) for t in flatten_tensors(inputs)]
    expected = [unwrap(t) for t in flatten_tensors(reference(*given))]
    assert len(found) == len(expected), f"{len(found)} outputs, in torch {len(expected)}"
    for position, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        _compare(f"output {position}", ours, theirs.detach(), tolerance)
    differentiable = [t for t in expected if t.requires_grad]
    if differentiable:
        torch.autograd.backward(differentiable, [torch.ones_like(t) for t in differentiable])
    parameters = dict(reference.named_parameters())
    for name, parameter in model.named_parameters():
        gradient = parameter.sn_grad  # type: ignore[attr-defined]
        _compare(f"gradient of parameter {name}", gradient, parameters[name].grad, tolerance)
    for sent, leaf in zip(flatten_tensors(inputs), given, strict=True):
        if leaf.requires_grad:
            _compare(f"gradient of input {sent.sn_name}", sent.sn_grad, leaf.grad, tolerance)


def _compare(what: str, ours: torch.Tensor | None, theirs: torch.Tensor | None, tolerance: float) -> None:
    assert (ours is None) == (theirs is None), f"{what}: {ours}, in torch {theirs}"
    if ours is not None and theirs is not None:
        torch.testing.assert_close(
            ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text: f"{what}: {text}"
        )
