"""DCRNN: forecasts of traffic by gated recurrent units whose products are diffusion on the graph of sensors.

Source: Li et al., Diffusion Convolutional Recurrent Neural Network, arXiv 1707.01926. Sparse products are dense here,
and the decoder also reads its own forecasts in training, without scheduled sampling: a graph has no branches.

Axes: B batch, T steps of time, V sensors, U units, M matrices of the diffusion, F features.
"""

from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import nn

import sambaflow.samba as samba
from rdukit_zoo.datasets.traffic import make_windows, road_graph
from rdukit_zoo.registry import SizeValue, Variant, model

#: Mean and deviation of the speeds that the model reads, in miles per hour; answers are scaled back by them.
MEAN: Final = 54.0
DEVIATION: Final = 16.0


def diffusion_matrices(weight_VV: torch.Tensor, steps: int) -> torch.Tensor:
    """Return [M, V, V]: the identity, and for walks along and against the roads the Chebyshev terms up to ``steps``."""
    identity_VV = torch.eye(len(weight_VV))
    found = [identity_VV]
    for walk_VV in (weight_VV, weight_VV.t()):
        walk_VV = (walk_VV / walk_VV.sum(1, keepdim=True).clamp(min=1e-8)).t()
        before_VV, last_VV = identity_VV, walk_VV
        for _ in range(steps):
            found.append(last_VV)
            before_VV, last_VV = last_VV, 2 * walk_VV @ last_VV - before_VV
    return torch.stack(found)


class DiffusionConvolution(nn.Module):
    """Linear in features after diffusion by each matrix: [B, V, F] → [B, V, outputs]."""

    def __init__(self, features: int, outputs: int, matrices: int, bias: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features * matrices, outputs))
        self.bias = nn.Parameter(torch.full((outputs,), bias))
        nn.init.xavier_normal_(self.weight)

    def forward(self, x_BVF: torch.Tensor, matrices_MVV: torch.Tensor) -> torch.Tensor:
        spread_BMVF = matrices_MVV @ x_BVF.unsqueeze(1)
        batch, matrices, sensors, features = spread_BMVF.shape
        flat = spread_BMVF.permute(0, 2, 3, 1).reshape(batch, sensors, features * matrices)
        return flat @ self.weight + self.bias


class DiffusionGru(nn.Module):
    """A gated recurrent unit of diffusion convolutions: (x [B, V, F], state [B, V, U]) → state."""

    def __init__(self, features: int, units: int, matrices: int) -> None:
        super().__init__()
        self.gates = DiffusionConvolution(features + units, 2 * units, matrices, bias=1.0)
        self.candidate = DiffusionConvolution(features + units, units, matrices, bias=0.0)

    def forward(self, x_BVF: torch.Tensor, state_BVU: torch.Tensor, matrices_MVV: torch.Tensor) -> torch.Tensor:
        gates = torch.sigmoid(self.gates(torch.cat([x_BVF, state_BVU], -1), matrices_MVV))
        reset_BVU, update_BVU = gates.chunk(2, -1)
        fresh_BVU = torch.tanh(self.candidate(torch.cat([x_BVF, reset_BVU * state_BVU], -1), matrices_MVV))
        return update_BVU * state_BVU + (1 - update_BVU) * fresh_BVU


class Dcrnn(nn.Module):
    """(history [B, T, V, 2], future [B, T, V]) → (masked mean absolute error [], forecast [B, T, V]).

    Speeds are in miles per hour, 0 where a reading is missing; those count in no loss. The second value of the history
    is the time of day. The history alone gives the forecast.
    """

    def __init__(self, nodes: int = 10, units: int = 64, layers: int = 2, steps: int = 12, diffusion: int = 2) -> None:
        super().__init__()
        matrices = 1 + 2 * diffusion
        self.units, self.steps = units, steps
        self.encoder = nn.ModuleList(DiffusionGru(units if i else 2, units, matrices) for i in range(layers))
        self.decoder = nn.ModuleList(DiffusionGru(units if i else 1, units, matrices) for i in range(layers))
        self.projection = nn.Linear(units, 1)
        self.matrices_MVV: torch.Tensor
        # The sensors' graph has values even if the model is on the meta device.
        with torch.device("cpu"):
            matrices_MVV = diffusion_matrices(torch.from_numpy(road_graph(nodes)), diffusion)
        self.register_buffer("matrices_MVV", matrices_MVV)

    def forward(
        self, history: torch.Tensor, future: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        batch, steps, sensors, _ = history.shape
        speed_BTVF = (history[..., :1] - MEAN) / DEVIATION
        x_BTVF = torch.cat([speed_BTVF, history[..., 1:]], -1)
        states = [history.new_zeros(batch, sensors, self.units) for _ in self.encoder]
        for step in range(steps):
            self._step(self.encoder, x_BTVF[:, step], states)
        x_BVF = history.new_zeros(batch, sensors, 1)
        forecast = []
        for _ in range(self.steps):
            x_BVF = self.projection(self._step(self.decoder, x_BVF, states))
            forecast.append(x_BVF[..., 0])
        found_BTV = torch.stack(forecast, 1) * DEVIATION + MEAN
        if future is None:
            return found_BTV
        read_BTV = (future != 0).to(found_BTV.dtype)
        loss = ((found_BTV - future).abs() * read_BTV).sum() / read_BTV.sum().clamp(min=1)
        return loss, found_BTV

    def _step(self, cells: nn.ModuleList, x_BVF: torch.Tensor, states: list[torch.Tensor]) -> torch.Tensor:
        for number, cell in enumerate(cells):
            states[number] = x_BVF = cell(x_BVF, states[number], self.matrices_MVV)
        return x_BVF


def make_inputs(batch_size: int, nodes: int, steps: int, **sizes: SizeValue) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs: ``history`` [batch, T, V, 2] and ``future`` [batch, T, V]."""
    history = samba.rand(batch_size, steps, nodes, 2, name="history", batch_dim=0)
    return history, samba.rand(batch_size, steps, nodes, name="future", batch_dim=0)


def generate(count: int, seed: int, **sizes: SizeValue) -> dict[str, NDArray[Any]]:
    """Simulate traffic; see ``make_windows``."""
    return make_windows(count, seed, int(sizes["nodes"]), int(sizes["steps"]))


model(
    name="dcrnn",
    title="DCRNN: traffic on a graph of sensors",
    task="forecasting",
    modality="time series",
    licence="Apache-2.0",
    source="Li et al., Diffusion Convolutional Recurrent Neural Network (2018), arXiv 1707.01926",
    sizes={"nodes": 10, "units": 16, "layers": 2, "steps": 12, "diffusion": 2},
    make_inputs=make_inputs,
    variants={"paper": Variant({"nodes": 207, "units": 64}, 372_353)},
    generate=generate,
    output_unit="mph",
)(Dcrnn)
