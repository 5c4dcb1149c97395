"""Conversions to the dtype that a tensor has when traced, and indices that are SambaTensors."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from rdukit.pef import read_pef
from sambaflow import samba
from sambaflow.samba import utils
from support import shows

pytestmark = shows("precision")

WIDTH = 16


class Norm(nn.Module):
    """As libraries write it: statistics in f32, the result in the dtype of what came."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Any) -> Any:
        dtype = x.dtype
        x = x.to(torch.float32)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).to(dtype)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = Norm(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        x = self.up(x)
        return x + self.down(self.norm(x))


class Added(nn.Module):
    """Adds in place to what a conversion gave: in torch the converted tensor is the same one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Any) -> Any:
        first = x * self.weight
        second = first.to(torch.float32)
        second.add_(1.0)
        return first * 2, second


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.arange(24.0).reshape(6, 4))
        self.scale = nn.Linear(4, 4)

    def forward(self, position: Any) -> Any:
        return self.scale(self.rows[position]), self.rows[position, 1] + 0.0, self.rows[None, 2:, :2] * 1.0


def compiled(model: nn.Module, inputs: tuple[Any, ...], precision: str, folder: Path) -> Any:
    samba.session.reset()
    samba.from_torch_model_(model)
    config = {"output_folder": str(folder), "pef_name": "g", "precision": precision, "log_level": "error"}
    pef = samba.session.compile(model, inputs, inference=True, config_dict=config)
    return pef, utils.trace_graph(model, inputs, pef=pef)


def test_a_conversion_back_to_the_inputs_dtype_leaves_the_residual_stream_narrow(tmp_path: Path) -> None:
    x = samba.randn(8, WIDTH, name="x")
    model = Residual().eval()
    with torch.no_grad():
        gold = model(x.torch())
    pef, traced = compiled(model, (x,), "bf16", tmp_path)
    held = read_pef(pef).pef
    assert held.symbols[held.graphs[next(iter(held.graphs))].outputs[0]].dtype == "bfloat16"
    (made,) = samba.session.run([x], [traced] if not isinstance(traced, list | tuple) else traced)
    # bf16 has 8 bits: products of 16 terms of size about 1.
    torch.testing.assert_close(made.torch(), gold, rtol=3e-2, atol=3e-2)


def test_what_is_done_to_a_converted_tensor_is_done_to_the_one_that_torch_says_it_is(tmp_path: Path) -> None:
    x = samba.randn(3, WIDTH, name="x")
    model = Added().eval()
    with torch.no_grad():
        gold = model(x.torch())
    _, traced = compiled(model, (x,), "f32", tmp_path)
    made = samba.session.run([x], list(traced))
    for ours, theirs in zip(made, gold, strict=True):
        torch.testing.assert_close(ours.torch(), theirs, rtol=0, atol=0)  # the same two f32 operations


def test_a_buffer_may_be_indexed_by_an_input(tmp_path: Path) -> None:
    position = samba.from_torch_tensor(torch.tensor([4, 0, 2]), name="position")
    model = Table().eval()
    with torch.no_grad():
        gold = model(position.torch())
    _, traced = compiled(model, (position,), "f32", tmp_path)
    made = samba.session.run([position], list(traced))
    for ours, theirs in zip(made, gold, strict=True):
        torch.testing.assert_close(ours.torch(), theirs)  # f32, torch's own tolerance: a product of four terms
