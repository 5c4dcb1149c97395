"""Python's control flow over tensors that forward makes from nothing and overwrites in place, through views too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import TraceError
from sambaflow import samba
from support import shows
from support.programs import load_model

pytestmark = shows("pytorch")


def overwritten() -> torch.Tensor:
    made = torch.ones(4)
    made.zero_()
    return made


def overwritten_through_a_view() -> torch.Tensor:
    made = torch.ones(4)
    made.view(2, 2)[0].zero_()
    made[2:] = 0
    return made


def seen_through_a_view() -> torch.Tensor:
    made = torch.ones(2, 2)
    row = made[0]
    made.mul_(0)
    return row


def set_by_a_mask() -> torch.Tensor:
    made = torch.arange(4)
    made[made > 0] = 0
    return made


def read_before() -> torch.Tensor:
    made = torch.ones(4)
    kept = made + 0
    made.zero_()
    return kept


class Branch(nn.Module):
    """x, or twice that if any element is not 0."""

    def __init__(self, function: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return x * 2 if self.function().any() else x + 0


@pytest.mark.parametrize(
    "function", [overwritten, overwritten_through_a_view, seen_through_a_view, set_by_a_mask, read_before]
)
def test_a_branch_reads_what_was_written_last(function: Callable[[], torch.Tensor], tmp_path: Path) -> None:
    net = Branch(function)
    x = samba.randn(2, 3, name="x")
    (out,) = load_model(net, x, tmp_path, precision="f32").run()
    assert torch.equal(out.data, net(x.data))


def test_a_branch_over_what_an_input_overwrote_is_refused(tmp_path: Path) -> None:
    class Overwrites(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            made = torch.ones(2, 3)
            made.view(-1)[:3] = x[0]
            return x * 2 if made.any() else x

    with pytest.raises(TraceError, match="control flow"):
        load_model(Overwrites(), samba.randn(2, 3, name="x"), tmp_path, precision="f32")


def positions() -> torch.Tensor:
    return torch.tensor([[1, 0, 1], [0, 1, 1]]).nonzero()


def distinct() -> torch.Tensor:
    mask = torch.ones(2, 3, dtype=torch.long).tril()
    return mask.nonzero()[:, 0].unique()


def chosen() -> torch.Tensor:
    numbers = torch.arange(6)
    return numbers.masked_select(numbers % 2 == 0)


def repeated() -> torch.Tensor:
    return torch.arange(3).repeat_interleave(torch.tensor([2, 0, 1]))


@pytest.mark.parametrize("function", [positions, distinct, chosen, repeated])
def test_a_shape_that_depends_on_known_values_is_known(function: Callable[[], torch.Tensor], tmp_path: Path) -> None:
    class Indexed(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.flatten()[function().flatten()], function() + len(function())

    net, x = Indexed(), samba.randn(2, 3, name="x")
    made = load_model(net, x, tmp_path, precision="f32").run()
    assert all(torch.equal(ours.data, theirs) for ours, theirs in zip(made, net(x.data), strict=True))
