"""Uno: towers of linear layers for each kind of features, joined, give the growth of tumour cells under two drugs.

Source: ECP-CANDLE Benchmarks, Pilot 1, Uno; Xia et al., Predicting tumor cell line response to drug pairs (2018).

Axes: B batch, F features of a kind, C width.
"""

import itertools
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

import sambaflow.samba as samba
from rdukit_zoo.registry import SizeValue, Variant, model

#: Layers of a tower of features.
TOWER: Final = 3


class Tower(nn.Module):
    """Linear layers with ReLU: [B, F] → [B, C]."""

    def __init__(self, features: int, width: int, layers: int) -> None:
        super().__init__()
        widths = (features, *[width] * layers)
        self.dense = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.dense:
            x = F.relu(layer(x))
        return x


class Uno(nn.Module):
    """(kinds of features, each [B, F], growth [B, 1]) → (mean squared error [], growth [B, 1]).

    With two drugs: cell, first and second drug's descriptors and fingerprints, doses [B, 2]; both drugs share towers.
    With one: cell and descriptors. Without the growth it is predicted alone.
    """

    def __init__(
        self, cell: int = 942, descriptors: int = 5270, fingerprints: int = 2048, width: int = 1000, layers: int = 3,
        has_two_drugs: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.has_two_drugs = has_two_drugs
        self.cell, self.descriptors = Tower(cell, width, TOWER), Tower(descriptors, width, TOWER)
        if has_two_drugs:
            self.fingerprints = Tower(fingerprints, width, TOWER)
        self.joined = Tower(5 * width + 2 if has_two_drugs else 2 * width, width, layers)
        self.growth = nn.Linear(width, 1)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, *given: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        features = 6 if self.has_two_drugs else 2
        x_BC = torch.cat(list(self._read(given[:features])), 1)
        found: torch.Tensor = self.growth(self.joined(x_BC))
        return found if len(given) == features else (F.mse_loss(found, given[features]), found)

    def _read(self, given: tuple[torch.Tensor, ...]) -> Iterable[torch.Tensor]:
        """Return the towers' outputs for each kind of features, and the unchanged doses."""
        if not self.has_two_drugs:
            return self.cell(given[0]), self.descriptors(given[1])
        cell, descriptors_1, fingerprints_1, descriptors_2, fingerprints_2, doses = given
        return (
            self.cell(cell), self.descriptors(descriptors_1), self.fingerprints(fingerprints_1),
            self.descriptors(descriptors_2), self.fingerprints(fingerprints_2), doses,
        )  # fmt: skip


def feature_widths(**sizes: SizeValue) -> dict[str, int]:
    """Return the features of each input by name, in order."""
    cell, descriptors, fingerprints = (int(sizes[name]) for name in ("cell", "descriptors", "fingerprints"))
    if not sizes["has_two_drugs"]:
        return {"cell": cell, "descriptors": descriptors}
    drugs = {f"{kind}_{drug}": width for drug in (1, 2)
             for kind, width in (("descriptors", descriptors), ("fingerprints", fingerprints))}  # fmt: skip
    return {"cell": cell, **drugs, "doses": 2}


def make_inputs(batch_size: int, **sizes: SizeValue) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs: each kind of features [batch, F], and ``growth`` [batch, 1]."""
    widths = feature_widths(**sizes) | {"growth": 1}
    return tuple(samba.randn(batch_size, width, name=name, batch_dim=0) for name, width in widths.items())


def generate(count: int, seed: int, **sizes: SizeValue) -> dict[str, NDArray[Any]]:
    """Draw dose curves: cells and drugs have hidden traits, which their features show with noise.

    Growth follows Hill's equation of the dose; its half-effect dose depends on how traits of cell and drug match, and
    two drugs act independently (Bliss). Features are linear in the traits; fingerprints are 0 or 1.
    """
    draw = np.random.default_rng([seed, 14])
    world = np.random.default_rng(14)
    traits, widths = 8, feature_widths(**sizes)
    cells, drugs = world.normal(size=(60, traits)), world.normal(size=(120, traits))
    shown = {kind: world.normal(size=(traits, width)) / np.sqrt(traits) for kind, width in
             (("cell", widths["cell"]), ("descriptors", int(sizes["descriptors"])),
              ("fingerprints", int(sizes["fingerprints"])))}  # fmt: skip
    which_cell = draw.integers(len(cells), size=count)
    log_doses_N2 = draw.uniform(-3, 1, (count, 2))
    found: dict[str, NDArray[Any]] = {"cell": cells[which_cell] @ shown["cell"] + draw.normal(0, 0.1, (count, 1))}
    growth = np.ones(count)
    for drug in (1, 2) if sizes["has_two_drugs"] else (1,):
        which = draw.integers(len(drugs), size=count)
        ending = f"_{drug}" if sizes["has_two_drugs"] else ""
        found["descriptors" + ending] = drugs[which] @ shown["descriptors"]
        if ending:
            found["fingerprints" + ending] = (drugs[which] @ shown["fingerprints"] > 0).astype(float)
        match = (cells[which_cell] * drugs[which]).sum(1) / traits
        # Without doses the answer is the mean over the curve.
        dose = log_doses_N2[:, drug - 1] if ending else np.zeros(count)
        growth *= 1 / (1 + 10 ** (1.2 * (dose + 1 + match)))
    if sizes["has_two_drugs"]:
        found["doses"] = log_doses_N2
    found["growth"] = (growth + draw.normal(0, 0.01, count))[:, None]
    return {name: values.astype(np.float32) for name, values in found.items()}


model(
    name="uno",
    title="Uno: tumour cells under pairs of drugs",
    task="regression",
    modality="tables",
    licence="Apache-2.0",
    source="ECP-CANDLE Benchmarks, Pilot 1, Uno",
    sizes={
        "cell": 60, "descriptors": 80, "fingerprints": 64, "width": 64, "layers": 3, "has_two_drugs": True,
    },
    make_inputs=make_inputs,
    variants={
        "all-features": Variant(
            {"cell": 942, "descriptors": 5270, "fingerprints": 2048, "width": 1000, "layers": 3}, 21_275_001
        ),
        "auc": Variant(
            {"cell": 942, "descriptors": 5270, "width": 1000, "layers": 5, "has_two_drugs": False}, 16_224_001
        ),
    },
    generate=generate,
)(Uno)  # fmt: skip
