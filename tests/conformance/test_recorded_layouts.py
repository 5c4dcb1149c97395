"""Operators whose results lie otherwise in memory than torch's records say: kernels compute the same all the same."""

from pathlib import Path

import torch
from torch import nn

from rdukit_compiler.backend.kernel_graph import kernel_from_fx
from rdukit_compiler.torch_private import trace_aten
from rdukit_runtime.engine.portable import build_portable
from sambaflow import samba
from support import shows
from support.programs import compare_step

pytestmark = shows("engine", "portable")


def test_a_view_of_what_lies_otherwise_than_recorded_is_a_copy() -> None:
    """``softplus_backward`` of a transposed gradient is recorded without gaps and comes transposed."""

    def function(gradient: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        made = torch.ops.aten.softplus_backward.default(gradient.transpose(1, 2), x, 1, 20)
        return [made.view(6, 4)]

    inputs = [torch.randn(2, 4, 3), torch.randn(2, 3, 4)]
    traced = trace_aten(function, inputs)
    (made,) = build_portable(kernel_from_fx(traced.graph))(tuple(inputs), {})
    expected = inputs[0].transpose(1, 2) * torch.sigmoid(inputs[1])
    assert torch.allclose(made, expected.reshape(6, 4))


class NormOfWritten(nn.Module):
    """Writes through a view with an axis of one element, whose strides differ from those recorded, and normalises."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(1, 3, 3, 2))
        self.norm = nn.GroupNorm(2, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x * self.scale).flip(0, -3).permute(0, 3, 1, 2)
        y[..., None, 0] = 2.0
        return self.norm(y), y


def test_group_norm_takes_what_lies_otherwise_than_recorded(tmp_path: Path) -> None:
    compare_step(NormOfWritten(), (samba.randn(1, 3, 3, 2, name="x"),), tmp_path)


class CountsInTensors(nn.Module):
    """Makes numbers of sizes by functions of tensors, as Longformer does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chunks = torch.div(x.size(0), 2, rounding_mode="trunc") - 1
        return self.layer(x) * chunks + torch.floor_divide(torch.tensor(x.size(1)), 3)


def test_numbers_have_no_layout(tmp_path: Path) -> None:
    compare_step(CountsInTensors(), (samba.randn(6, 4, name="x"),), tmp_path)
