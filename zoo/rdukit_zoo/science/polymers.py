"""AI4Polymers: an embedding of repeat units, convolutions along the chain, a mean. Ours: nothing public describes it.

Units are read like letters; the output is a property of the polymer.

Axes: N polymers, B batch, T units of a chain, C width.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

import sambaflow.samba as samba
from rdukit_zoo.registry import SizeValue, Variant, model


@dataclass(frozen=True, slots=True)
class PolymerSizes:
    """Sizes of a polymer's model; the defaults train within a minute on a processor."""

    #: Kinds of repeat units.
    kinds: int = 20
    #: Units of a chain.
    length: int = 24
    width: int = 32
    layers: int = 2


class PolymerNet(nn.Module):
    """(units [B, T] int64, transition [B, 1]) → (loss [], transition [B, 1]); the units alone → the transition."""

    def __init__(self, **sizes: SizeValue) -> None:
        super().__init__()
        known = PolymerSizes(**sizes)  # type: ignore[arg-type]
        self.units = nn.Embedding(known.kinds, known.width)
        self.layers = nn.ModuleList(nn.Conv1d(known.width, known.width, 3, padding=1) for _ in range(known.layers))
        self.transition = nn.Linear(known.width, 1)

    def forward(
        self, units: torch.Tensor, transition: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        x_BCT = self.units(units).transpose(1, 2)
        for layer in self.layers:
            x_BCT = x_BCT + F.gelu(layer(x_BCT))
        found: torch.Tensor = self.transition(x_BCT.mean(2))
        return found if transition is None else (F.mse_loss(found, transition), found)


def make_inputs(batch_size: int, **sizes: SizeValue) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs: ``units`` [batch, length] and ``transition`` [batch, 1]."""
    units = samba.randint(int(sizes["kinds"]), (batch_size, int(sizes["length"])), name="units", batch_dim=0)
    return units, samba.randn(batch_size, 1, name="transition", batch_dim=0)


def generate(count: int, seed: int, **sizes: SizeValue) -> dict[str, NDArray[Any]]:
    """Draw copolymers and their glass transition temperatures by group contributions.

    Each kind of unit has a molar mass and a contribution, as van Krevelen has it: the temperature is the sum of the
    contributions over the sum of the masses. Neighbours that repel each other stiffen the chain (Johnston's dyads), and
    a measurement is off by 3 K. A chain is drawn from a few kinds, in blocks or at random.

    Returns:
        ``units`` [N, T] int64 and ``transition`` [N, 1] float32, in units of 100 K above 300 K.
    """
    draw, world = np.random.default_rng([seed, 31]), np.random.default_rng(31)
    kinds, length = int(sizes["kinds"]), int(sizes["length"])
    mass = world.uniform(28, 180, kinds)
    contribution = mass * world.uniform(200, 480, kinds)
    stiffening = np.abs(world.normal(0, 25, (kinds, kinds)))
    units = np.zeros((count, length), np.int64)
    for number in range(count):
        chosen = draw.choice(kinds, min(kinds, int(draw.integers(2, 5))), replace=False)
        steps = draw.random(length) < draw.uniform(0.1, 1.0)
        picks = chosen[draw.integers(len(chosen), size=length)]
        units[number] = picks[np.maximum.accumulate(np.where(steps, np.arange(length), 0))]
    temperature = contribution[units].sum(1) / mass[units].sum(1)
    temperature += stiffening[units[:, :-1], units[:, 1:]].mean(1) + draw.normal(0, 3, count)
    return {"units": units, "transition": ((temperature - 300) / 100)[:, None].astype(np.float32)}


model(
    name="polymers",
    limits={"units": "kinds"},
    title="AI4Polymers: glass transition of a copolymer",
    task="regression",
    modality="tables",
    licence="Apache-2.0",
    source="ours: nothing public describes the vendor's model of that name; data after van Krevelen and Johnston",
    sizes=asdict(PolymerSizes()),
    make_inputs=make_inputs,
    variants={"small": Variant({}, 6_881)},
    generate=generate,
    output_unit="100 K",
)(PolymerNet)
