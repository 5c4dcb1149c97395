"""``torch.distributions`` inside forward: densities and their gradients as torch's, samples from the device's numbers.

Arguments are not checked while a model is traced, which would look at their values; torch.compile does the same.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributions, nn
from torch.nn import functional as F

from sambaflow import samba
from support import shows
from support.programs import load_model

pytestmark = shows("pytorch")


def student(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return -distributions.StudentT(F.softplus(w) + 2, w * 2, F.softplus(w)).log_prob(x).mean()


def normal(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    prior = distributions.Normal(torch.zeros(4, 3), torch.ones(4, 3))
    posterior = distributions.Normal(w, F.softplus(w))
    return distributions.kl_divergence(posterior, prior).mean() - posterior.log_prob(x).mean()


def categorical(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    chosen = distributions.Categorical(logits=w * x)
    return chosen.entropy().mean() - chosen.log_prob(x.argmax(-1)).mean()


def bernoulli(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return -distributions.Bernoulli(logits=w).log_prob((x > 0).float()).mean()


class Fitted(nn.Module):
    """The negative log-likelihood that ``function(w, x)`` gives."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3))
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.w, x)


@pytest.mark.parametrize("function", [student, normal, categorical, bernoulli])
def test_a_likelihood_is_differentiated(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    net = Fitted(function)
    gold = copy.deepcopy(net)
    x = samba.randn(4, 3, name="x")
    loaded = load_model(net, x, tmp_path, lambda p: samba.optim.SGD(p, lr=0.0), precision="f32")
    (loss,) = loaded.run()
    expected = gold(x.data)
    expected.backward()
    assert gold.w.grad is not None
    assert torch.allclose(loss.data, expected, atol=1e-6)  # f32, a dozen operators
    assert torch.allclose(net.w.sn_grad, gold.w.grad, atol=1e-6)


def test_a_sample_carries_its_gradient(tmp_path: Path) -> None:
    """``mean + deviation * noise``: the gradient of the mean is 1, whatever was drawn."""
    net = Fitted(lambda w, x: distributions.Normal(w, torch.ones(4, 3)).rsample())
    loaded = load_model(
        net, samba.randn(4, 3, name="x"), tmp_path, lambda p: samba.optim.SGD(p, lr=0.0), precision="f32"
    )
    (first,) = loaded.run()
    assert torch.equal(net.w.sn_grad, torch.ones(4, 3))
    drawn = first.data.clone()
    (second,) = loaded.run()
    assert not torch.equal(drawn, second.data)


def test_arguments_are_checked_again_afterwards(tmp_path: Path) -> None:
    load_model(Fitted(normal), samba.randn(4, 3, name="x"), tmp_path, precision="f32")
    with pytest.raises(ValueError, match="scale"):
        distributions.Normal(torch.zeros(1), -torch.ones(1))
