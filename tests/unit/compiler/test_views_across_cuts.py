"""A view that forward could take can be taken wherever the graph is cut, although a cut changes layouts."""

from pathlib import Path

import pytest
import torch
from torch import nn

import sambaflow.samba as samba
from rdukit_compiler.options import CompileOptions
from rdukit_compiler.passes.assemble import assemble_graph
from rdukit_compiler.passes.assembly import Assembly
from rdukit_compiler.passes.assign_precision import Precision, assign_precision
from rdukit_compiler.passes.cut_sections import CutOptions, cut_sections
from sambaflow.tracing.tracer import trace_model
from support import shows

pytestmark = shows("pytorch", "o0", "o1", "o3")


class Attention(nn.Module):
    """As transformers has it: torch's attention makes what is one block once turned, so ``contiguous`` does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.mix(x).view(2, 5, 2, 4).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return mixed.transpose(1, 2).contiguous().view(2, 5, 8) + mixed.transpose(1, 2).flatten(2).unflatten(
            2, (4, 2)
        ).flatten(2)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
def test_the_output_of_attention_can_be_viewed_as_one_block(mode: str, training: bool) -> None:
    model = Attention()
    samba.from_torch_model_(model)
    traced = trace_model(model, samba.randn(2, 5, 8, name="x"), "attention").graph
    graph = assign_precision(traced, Precision("bf16", training))
    options = CompileOptions("attention", Path("a.pef"), mode=mode, inference=not training)
    plans = cut_sections(graph, CutOptions(mode, options.chip, options.tiles, (), not training))
    assembly = Assembly()
    assemble_graph(assembly, traced, graph, plans, (), options)
    assert assembly.sections
