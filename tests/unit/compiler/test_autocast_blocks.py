"""A block that switches autocast off, as in transformers' rotary embedding, changes nothing; others are refused."""

import pytest
import torch
from torch import nn

import sambaflow.samba as samba
from rdukit.errors import UnsupportedOperator
from sambaflow.tracing.tracer import trace_model
from support import shows

pytestmark = shows("pytorch")


class Block(nn.Module):
    def __init__(self, enabled: bool) -> None:
        super().__init__()
        self.linear, self.enabled = nn.Linear(4, 4), enabled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=self.enabled):
            return self.linear(x)


def traced_words(enabled: bool) -> list[str]:
    model = Block(enabled)
    samba.from_torch_model_(model)
    return [operator.op_type for operator in trace_model(model, samba.randn(2, 4, name="x"), "m").graph.operators]


def test_a_block_without_autocast_is_as_if_it_were_not_there() -> None:
    assert traced_words(enabled=False) == ["linear"]


def test_a_block_with_autocast_is_refused_with_what_to_do_instead() -> None:
    with pytest.raises(UnsupportedOperator, match="the device computes in bf16 anyway"):
        traced_words(enabled=True)
