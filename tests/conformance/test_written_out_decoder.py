"""A decoder as many write it, its heads joined by ``contiguous().view``, in each mode.

The fusion rules cut it elsewhere than attention ends: what was one block in forward comes packed into a section.
"""

from pathlib import Path

import pytest
import torch
from torch import nn

from sambaflow import samba
from support import shows
from support.programs import load_model

pytestmark = shows("pytorch", "o0", "o1", "o3")

WIDTH, HEADS, LENGTH = 32, 4, 6


class Layer(nn.Module):
    """Attention and a gated feed-forward, each after an RMS norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 48, bias=False) for _ in range(2))
        self.down = nn.Linear(48, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = self.norms[0](x)
        heads = (part(norm).view(2, LENGTH, HEADS, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).contiguous().view(2, LENGTH, WIDTH))
        norm = self.norms[1](x)
        made: torch.Tensor = x + self.down(nn.functional.silu(self.gate(norm)) * self.up(norm))
        return made


class Decoder(nn.Module):
    """Two layers and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Layer(), Layer())
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.norm(self.layers(x))
        return made


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
def test_a_decoder_that_joins_its_heads_by_a_view_compiles_in_every_mode(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    samba.session.reset()
    torch.manual_seed(0)
    model = Decoder().eval()
    x = samba.randn(2, LENGTH, WIDTH, name="x", batch_dim=0)
    with torch.no_grad():
        wanted = model(x.torch())
    loaded = load_model(model, (x,), tmp_path, optim_level=mode, precision="f32")
    torch.testing.assert_close(samba.to_torch(loaded.run()[0]), wanted, rtol=1e-5, atol=1e-5)
