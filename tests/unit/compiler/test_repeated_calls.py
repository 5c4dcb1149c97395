"""Equal calls run once, and dtypes and gradients come out as if each had run."""

from typing import Any

import pytest
import torch
from torch import nn

import sambaflow.samba as samba
from rdukit_compiler.ir import ModelGraph
from rdukit_compiler.operators.run_operator import run_operator
from rdukit_compiler.passes import assign_precision as module
from rdukit_compiler.passes.assign_precision import Precision, assign_precision
from sambaflow.tracing.tracer import trace_model
from support import shows

pytestmark = shows("precision", "pytorch")


class EachCall(module.RepeatedCalls):
    """Runs every call."""

    def tensor_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def run(self, operator: Any, tensors: dict[str, torch.Tensor]) -> None:
        run_operator(operator, tensors)


class Layer(nn.Module):
    def __init__(self, is_trained: bool) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(8), nn.Linear(8, 24)
        self.requires_grad_(is_trained)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(3, 2, 4).transpose(0, 1) for part in self.mix(self.norm(x)).split(8, -1))
        return x + nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(3, 8).detach() * q.sum()


class Mixed(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = x.argmax(-1)
        return tuple(whole + number for number in (1, 1.0, True)), x + 1.0, x.double() + 1  # type: ignore[return-value]


def traced(layers: int) -> ModelGraph:
    model = nn.Sequential(*(Layer(is_trained=index >= layers // 2) for index in range(layers)))
    samba.from_torch_model_(model)
    return trace_model(model, samba.randn(3, 8, name="x"), "deep").graph


@pytest.mark.parametrize("precision", [Precision("bf16", True), Precision("bf16", False), Precision("f32", True)])
def test_the_graph_is_the_one_that_running_every_call_gives(
    precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = traced(4)
    found = assign_precision(graph, precision)
    monkeypatch.setattr(module, "RepeatedCalls", EachCall)
    assert assign_precision(graph, precision) == found


def test_a_deeper_model_runs_no_more_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def counted(operator: Any, tensors: dict[str, Any]) -> None:
        ran.append(operator.op)
        run_operator(operator, tensors)

    monkeypatch.setattr(module, "run_operator", counted)
    counts = []
    for layers in (4, 12):
        ran.clear()
        assign_precision(traced(layers), Precision("bf16", True))
        counts.append(len(ran))
    assert counts[0] == counts[1]


def test_calls_that_differ_in_a_literals_type_only_are_told_apart() -> None:
    model = Mixed()
    graph = trace_model(model, samba.randn(3, 8, name="x"), "mixed").graph
    typed = assign_precision(graph, Precision("f32", False))
    assert [typed.values[name].dtype for name in typed.outputs] == ["int64", "float32", "int64", "float32", "float64"]
