"""Python's control flow and shapes over integer buffers that are no part of a checkpoint, as audio codecs have them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rdukit.errors import TraceError
from sambaflow import samba
from sambaflow.testing import load_model


class PaddedConvolution(nn.Module):
    """EnCodec's: how much is padded follows from two buffers []."""

    def __init__(self, is_persistent: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 4, 2)
        self.register_buffer("stride", torch.tensor(2), persistent=is_persistent)
        self.register_buffer("total", torch.tensor(2), persistent=is_persistent)

    def forward(self, x: torch.Tensor) -> Any:
        frames = torch.ceil(x.shape[-1] / self.stride + 0.25).to(torch.int64)
        extra = frames * self.stride - x.shape[-1]
        left = self.total - self.total // 2
        if max(left, extra) > 0:
            x = F.pad(x, (left, self.total // 2 + extra))
        return self.conv(x)


class Counts(nn.Module):
    """Doubles from its third call on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(0), persistent=False)

    def forward(self, x: torch.Tensor) -> Any:
        self.calls.add_(1)
        return x * 2 if self.calls > 2 else x + 0


def test_a_padding_that_is_kept_in_buffers_is_a_number(tmp_path: Path) -> None:
    net = PaddedConvolution()
    x = samba.randn(1, 2, 9, name="x")
    (out,) = load_model(net, x, tmp_path, precision="f32").run()
    expected = net(x.data)
    assert out.shape == expected.shape
    assert torch.allclose(out.data, expected, atol=1e-6)


@pytest.mark.parametrize("model", [PaddedConvolution(is_persistent=True), Counts()])
def test_a_buffer_that_a_checkpoint_or_forward_changes_is_no_number(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot depend on (data|state)"):
        load_model(model, samba.randn(1, 2, 9, name="x"), tmp_path, precision="f32")
