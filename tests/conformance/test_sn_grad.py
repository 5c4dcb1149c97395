"""Gradients that a program reads, of inputs and of parameters without one; the loss as published programs index it."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rdukit.errors import InvalidArgument, UnknownTensor
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.sambatensor import SambaTensor
from support import shows
from support.programs import LogReg, classifier_inputs, compile_model, load_model

pytestmark = shows("pytorch", "surface", "o0", "o1", "o3")


def sgd(parameters: Any) -> Any:
    return samba.optim.SGD(parameters, lr=0.0)


class Twice(nn.Module):
    """Reads ``x`` [B, 4] in two places, ``scale`` [4] in one, and never ``unused``."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 2)
        self.unused = nn.Linear(3, 3)
        self.b.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).tanh() * scale + x).square().mean()


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
@pytest.mark.parametrize(("precision", "limit"), [("f32", 1e-5), ("bf16", 2e-2)])
def test_an_input_that_requires_a_gradient_gets_torchs(mode: str, precision: str, limit: float, tmp_path: Path) -> None:
    inputs = (samba.randn(3, 4, name="x").requires_grad_(), samba.randn(4, name="scale"))
    net = Twice()
    reference = copy.deepcopy(net)
    loaded = load_model(net, inputs, tmp_path, sgd, optim_level=mode, precision=precision)
    loaded.run()
    x = inputs[0].data.clone().requires_grad_()
    reference(x, inputs[1].data).backward()
    assert x.grad is not None
    found = inputs[0].sn_grad
    assert found is not None
    assert (found.shape, found.dtype) == (x.grad.shape, x.grad.dtype)
    assert (found - x.grad).abs().max() < limit * x.grad.abs().max()  # bf16: eight bits of precision, three roundings
    assert inputs[1].sn_grad is None, "the program asked for none, and torch has none"
    given = samba.from_torch_tensor(x.detach() * 2, name="x")
    loaded.run(input_tensors=(given, inputs[1]))
    twice = x.detach().mul(2).requires_grad_()
    reference(twice, inputs[1].data).backward()
    assert twice.grad is not None
    assert given.sn_grad is not None, "a gradient belongs to the name"
    assert (given.sn_grad - twice.grad).abs().max() < limit * twice.grad.abs().max()


def test_frozen_and_unused_parameters_have_no_gradient_as_in_torch(tmp_path: Path) -> None:
    net = Twice()
    loaded = load_model(net, (samba.randn(3, 4, name="x"), samba.randn(4, name="scale")), tmp_path, sgd)
    assert net.unused.weight.sn_grad is None, "also before the first backward"
    with pytest.raises(UnknownTensor, match="bckwd"):
        _ = net.a.weight.sn_grad
    loaded.run()
    assert net.a.weight.sn_grad is not None
    assert [net.b.bias.sn_grad, net.unused.weight.sn_grad, net.unused.bias.sn_grad] == [None] * 3


def test_a_gradient_that_the_pef_was_not_compiled_for_is_refused_with_what_to_do(tmp_path: Path) -> None:
    inputs = (samba.randn(3, 4, name="x"), samba.randn(4, name="scale"))
    loaded = load_model(Twice(), inputs, tmp_path, sgd)
    loaded.run()
    assert inputs[0].sn_grad is None
    with pytest.raises(UnknownTensor, match=r"input 'x' requires a gradient.*before compile"):
        _ = inputs[0].requires_grad_().sn_grad


def test_an_input_that_no_output_depends_on_has_no_gradient(tmp_path: Path) -> None:
    inputs = (samba.randn(3, 4, name="x"), samba.randn(4, name="scale").requires_grad_())

    class Detached(Twice):
        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return super().forward(x, scale.detach())

    load_model(Detached(), inputs, tmp_path, sgd).run()
    assert inputs[1].sn_grad is None


def test_an_inference_pef_has_no_gradients_at_all(tmp_path: Path) -> None:
    net = Twice()
    load_model(net, (samba.randn(3, 4, name="x"), samba.randn(4, name="scale")), tmp_path).run()
    with pytest.raises(UnknownTensor, match="training PEF"):
        _ = net.unused.weight.sn_grad


def test_with_spatial_mapping_the_gradient_of_an_input_is_refused(tmp_path: Path) -> None:
    model, one = LogReg(), (samba.randn(4, 16, name="image").requires_grad_(), samba.randint(4, (4,), name="label"))
    pef = compile_model(model, one, sgd(model.parameters()), tmp_path)
    optimizer = sgd(model.parameters())
    two = (samba.randn(8, 16, name="image").requires_grad_(), samba.randint(4, (8,), name="label"))
    outputs = utils.trace_graph(model, two, optimizer, pef=pef, mapping="spatial")
    samba.session.run(two, outputs)
    with pytest.raises(InvalidArgument, match=r"runs 2 batches.*one batch"):
        _ = two[0].sn_grad


class PerSample(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(16, 4)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.lin(image), label, reduction="none")


def test_a_scalar_loss_can_be_indexed_as_if_it_had_shape_1_and_stays_a_scalar(tmp_path: Path) -> None:
    loaded = load_model(LogReg(), classifier_inputs(), tmp_path, sgd)
    loss, _ = loaded.run()
    for value in (loss, loaded.outputs[0]):
        assert value.shape == torch.Size([])
        assert isinstance(value[0], SambaTensor)
        assert value[0].item() == value[-1].item() == value.item() == samba.to_torch(value).item()
        assert value[0].shape == torch.Size([])
        assert value.mean().item() == value.item()
        with pytest.raises(IndexError):
            _ = value[1]
        with pytest.raises(TypeError):
            len(value)
    with pytest.raises(IndexError):  # no output of a graph: as in torch
        _ = samba.from_torch_tensor(torch.tensor(1.0), name="t")[0]


def test_a_loss_per_sample_is_indexed_as_ever(tmp_path: Path) -> None:
    loaded = load_model(PerSample(), classifier_inputs(), tmp_path, sgd)
    (loss,) = loaded.run()
    assert loss.shape == (8,)
    assert [loss[i].item() for i in range(8)] == loss.tolist()
