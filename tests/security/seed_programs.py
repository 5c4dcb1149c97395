"""Compiles the programs whose PEFs are changed: ``python seed_programs.py FOLDER`` writes ``seed_*.pef`` there."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from sambaflow import samba


class Of(nn.Module):
    """Calls ``function`` with its modules."""

    def __init__(self, function: Callable[..., torch.Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *self.parts)


def pooled(x: Any, convolution: Any, norm: Any, last: Any) -> Any:
    """Convolution, norm, pooling, a linear layer."""
    return last(F.max_pool2d(norm(convolution(x)).relu(), 2).flatten(1))


def looked_up(x: Any, table: Any, layer: Any) -> Any:
    """A lookup by what the input says, a transformer layer, sums by index."""
    rows = table(x.abs().mul(4).long().clamp(0, 7))
    return layer(rows).sum(1).scatter_add(1, torch.zeros(2, 8, dtype=torch.long), torch.ones(2, 8))


def recurrent(x: Any, lstm: Any, last: Any) -> Any:
    """An LSTM, sorting, picking, accumulating."""
    y, _ = lstm(x)
    values, order = y.sort(-1)
    return last(values.gather(-1, order)).cumsum(1).as_strided((2, 4), (4, 1), 1)


SEEDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "convolution": (
        lambda: Of(pooled, nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(16, 3)), lambda: torch.randn(2, 2, 6, 6)
    ),
    "lookup": (
        lambda: Of(looked_up, nn.Embedding(8, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)),
        lambda: torch.rand(2, 5),
    ),
    "recurrent": (
        lambda: Of(recurrent, nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 4)), lambda: torch.randn(2, 5, 3)
    ),
}  # fmt: skip


def main(folder: Path) -> None:
    """Compile all."""
    for name, (make, draw) in SEEDS.items():
        samba.session.reset()
        model, x = make(), draw()
        inputs = (samba.from_torch_tensor(x, name="x"),)
        samba.from_torch_model_(model)
        optimizer = samba.optim.AdamW(model.parameters(), lr=0.01)
        config = {"output_folder": str(folder / "out"), "pef_name": name}
        pef = samba.session.compile(model, inputs, optimizer, config_dict=config)
        (folder / f"seed_{name}.pef").write_bytes(Path(pef).read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
