"""The two models of the slides: the same numbers in every mode, and torch's own under f32."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sambaflow import samba
from support import shows
from support.programs import Loaded, LogReg, ResFFNLogReg, classifier_inputs, load_model

pytestmark = shows("o0", "o1", "o3", "native", "precision")

Model = type[LogReg] | type[ResFFNLogReg]


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches that a linear map of the image can tell apart, so that losses fall."""
    generator = torch.Generator().manual_seed(1)
    teacher = torch.randn(16, 4, generator=generator)
    images = [torch.randn(8, 16, generator=generator).bfloat16().float() for _ in range(count)]
    return [(image, (image @ teacher).argmax(1)) for image in images]


def train(loaded: Loaded, steps: int, **arguments: Any) -> list[float]:
    """Losses of ``steps`` whole steps on different batches."""
    losses = []
    for image, label in batches(steps):
        inputs = [samba.from_torch_tensor(image, name="image"), samba.from_torch_tensor(label, name="label")]
        loss, _ = loaded.run(input_tensors=inputs, **arguments)
        losses.append(samba.to_torch(loss).mean().item())
    return losses


def train_torch(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, max_norm: float | None = None
) -> list[float]:
    """The same with plain torch."""
    losses = []
    for image, label in batches(steps):
        optimizer.zero_grad()
        loss = model(image, label)[0]
        loss.backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        losses.append(loss.item())
    return losses


def worst_difference(model: nn.Module, reference: nn.Module) -> float:
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    return max((a.data - b.data).abs().max().item() for a, b in pairs)


def sgd(parameters: Any) -> Any:
    return samba.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def torch_sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def adamw(parameters: Any) -> Any:
    return samba.optim.AdamW(parameters, lr=3e-3, weight_decay=0.01)


def torch_adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.01, betas=(0.9, 0.997))


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
@pytest.mark.parametrize("model", [LogReg, ResFFNLogReg])
def test_bf16_losses_follow_those_of_torch_in_every_mode(model: Model, mode: str, tmp_path: Path) -> None:
    net = model()
    gold = train_torch(reference := copy.deepcopy(net), torch_sgd(reference.parameters()), 20)
    losses = train(load_model(net, classifier_inputs(), tmp_path, sgd, optim_level=mode), 20)
    # bf16 keeps 8 bits: 4e-3 relative per rounding; losses here are of order 1, and 20 steps let it grow a little.
    assert losses == pytest.approx(gold, abs=3e-2)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("optimizers", [(sgd, torch_sgd), (adamw, torch_adamw)], ids=["sgd", "adamw"])
@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
@pytest.mark.parametrize("model", [LogReg, ResFFNLogReg])
def test_f32_parameters_after_50_steps_equal_plain_torch(
    model: Model, mode: str, optimizers: tuple[Callable[..., Any], Callable[..., Any]], tmp_path: Path
) -> None:
    ours, theirs = optimizers
    net = model()
    reference = copy.deepcopy(net)
    gold = train_torch(reference, theirs(reference.parameters()), 50)
    losses = train(load_model(net, classifier_inputs(), tmp_path, ours, optim_level=mode, precision="f32"), 50)
    samba.session.to_cpu(net)
    assert worst_difference(net, reference) < 1e-5
    assert losses == pytest.approx(gold, abs=1e-5)


@pytest.mark.long
def test_native_kernels_give_the_same_parameters_after_50_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "auto")
    net = ResFFNLogReg()
    reference = copy.deepcopy(net)
    train_torch(reference, torch_sgd(reference.parameters()), 50)
    loaded = load_model(net, classifier_inputs(), tmp_path, sgd, optim_level="o3", precision="f32")
    train(loaded, 50)
    samba.session.to_cpu(net)
    assert worst_difference(net, reference) < 1e-5


@pytest.mark.parametrize("mode", ["o0", "o3"])
def test_clipping_the_norm_of_all_gradients_is_a_section_of_its_own(mode: str, tmp_path: Path) -> None:
    net = ResFFNLogReg()
    reference = copy.deepcopy(net)
    train_torch(reference, torch.optim.AdamW(reference.parameters(), lr=3e-3, weight_decay=0.0, betas=(0.9, 0.997)),
                30, max_norm=0.3)  # fmt: skip
    loaded = load_model(
        net, classifier_inputs(), tmp_path, lambda p: samba.optim.AdamW(p, lr=3e-3, max_grad_norm=0.3),
        optim_level=mode, precision="f32",
    )  # fmt: skip
    for image, label in batches(30):
        inputs = [samba.from_torch_tensor(image, name="image"), samba.from_torch_tensor(label, name="label")]
        loaded.run(input_tensors=inputs, section_types=["fwd", "bckwd", "gradnorm", "opt"])
    samba.session.to_cpu(net)
    assert worst_difference(net, reference) < 1e-5


def test_dropout_of_zero_trains_like_a_model_without_it(tmp_path: Path) -> None:
    class WithDropout(LogReg):
        def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return super().forward(nn.functional.dropout(inputs, 0.0, self.training), targets)

    net = WithDropout()
    reference = copy.deepcopy(net)
    train_torch(reference, torch_sgd(reference.parameters()), 20)
    train(load_model(net, classifier_inputs(), tmp_path, sgd, precision="f32"), 20)
    samba.session.to_cpu(net)
    assert worst_difference(net, reference) < 1e-5


def test_two_parameter_groups_keep_their_own_weight_decay(tmp_path: Path) -> None:
    def groups(parameters: Any) -> list[dict[str, Any]]:
        weight, bias = parameters
        return [{"params": [weight], "weight_decay": 0.1}, {"params": [bias], "weight_decay": 0.0}]

    net = LogReg()
    reference = copy.deepcopy(net)
    train_torch(reference, torch.optim.SGD(groups(reference.parameters()), lr=0.05, momentum=0.9), 30)
    loaded = load_model(
        net, classifier_inputs(), tmp_path, lambda p: samba.optim.SGD(groups(p), lr=0.05, momentum=0.9), precision="f32"
    )
    train(loaded, 30)
    samba.session.to_cpu(net)
    assert worst_difference(net, reference) < 1e-5
