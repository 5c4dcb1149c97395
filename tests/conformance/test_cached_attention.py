"""Attention to texts in a cache, as native kernels read it where it lies, gives what torch gives of selected rows."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sambaflow import samba
from support import first_short, shows
from support.programs import load_model

pytestmark = shows("engine", "inference", "native", "portable")

TEXTS, GROUPS, HEADS, POSITIONS, WIDTH = 5, 2, 6, 40, 24
#: Queries of each text and the texts that they are of: few, and many of which each sees a part.
CALLS = ((1, (3, 0, 4)), (3, (2,)), (20, (1, 4)))


class Cached(nn.Module):
    """Attends to rows of keys and values, with a bias that grows with the distance, a window, or plainly."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(TEXTS, GROUPS, POSITIONS, WIDTH))
        self.register_buffer("slopes", torch.rand(HEADS, 1, 1))

    def forward(self, query: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, kind: str) -> torch.Tensor:
        places = torch.arange(POSITIONS)
        seen = places <= positions[:, None, :, None]
        mask = seen
        if kind == "window":
            mask = seen & (places > positions[:, None, :, None] - 7)
        elif kind == "slopes":
            mask = torch.where(seen, self.slopes * places.float(), torch.tensor(-torch.inf))
        mixed = F.scaled_dot_product_attention(query, *(self._of(x, rows) for x in (self.keys, self.values)), mask)
        return mixed.transpose(1, 2).flatten(2)

    def _of(self, cache: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        batch = rows.shape[0]
        each = cache.index_select(0, rows)[:, :, None].expand(batch, GROUPS, HEADS // GROUPS, POSITIONS, WIDTH)
        return each.reshape(batch, HEADS, POSITIONS, WIDTH)


class Several(nn.Module):
    """All kinds for all calls, side by side: one section, to be built once."""

    def __init__(self) -> None:
        super().__init__()
        self.cached = Cached()

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        made = [
            self.cached(*given[3 * call : 3 * call + 3], kind).flatten()
            for call in range(len(CALLS))
            for kind in ("plain", "window", "slopes")
        ]
        return torch.cat(made)


@pytest.mark.parametrize(("precision", "tolerance"), first_short([("f32", 1e-5), ("bf16", 2e-2)]))
def test_rows_of_a_cache_are_read_where_they_lie(
    precision: str, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, given = Several().eval(), []
    for count, rows in CALLS:
        positions = torch.stack([torch.arange(count) + POSITIONS - count - 5 * at for at in range(len(rows))])
        given += [torch.randn(len(rows), HEADS, count, WIDTH), torch.tensor(rows), positions.clamp(min=0)]
    found = {}
    for kernels in ("portable", "native"):
        monkeypatch.setenv("RDUKIT_KERNELS", kernels)
        samba.session.reset()
        inputs = tuple(samba.from_torch_tensor(tensor, name=f"given{i}") for i, tensor in enumerate(given))
        loaded = load_model(copy.deepcopy(model), inputs, tmp_path / kernels, optim_level="o3", precision=precision)
        found[kernels] = samba.to_torch(loaded.run()[0]).float()
    if precision == "f32":
        with torch.no_grad():
            torch.testing.assert_close(found["portable"], model(*given), rtol=tolerance, atol=tolerance)
    # In bf16 the kernels keep sums of weights in f32.
    torch.testing.assert_close(found["native"], found["portable"], rtol=tolerance, atol=tolerance)
