"""Buffers that several graphs of one PEF use."""

from typing import Any

import pytest
import torch
from torch import nn

from rdukit.pef import read_pef
from sambaflow import samba
from sambaflow.samba.graph import FwdGraph
from sambaflow.samba.utils import trace_multigraph
from support import shows

pytestmark = shows("precision")


class Averaged(nn.Module):
    """Keeps a running average in one mode, and reads it in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(4))
        self.keeps = True

    def forward(self, x: Any) -> Any:
        x = x * 2
        if self.keeps:
            self.average.mul_(0.75).add_(x)
        return x + self.average


@pytest.mark.parametrize("keeps_first", [True, False])
def test_a_buffer_that_another_graph_updates_in_f32_is_read_in_the_same_dtype(keeps_first: bool) -> None:
    model, gold = samba.from_torch_model_(Averaged()), Averaged()
    outputs = {}
    for keeps in (keeps_first, not keeps_first):
        model.keeps = keeps
        given = samba.ones(4, name=f"x{keeps}")
        outputs[keeps] = trace_multigraph(model, given, trace_prefix=f"t{keeps}")
        samba.session.add_graph(FwdGraph(given, outputs[keeps], f"keeps{keeps}"))
    pef = samba.session.compile_multigraph(config_dict={"precision": "bf16"})
    (held,) = [s for s in read_pef(pef).pef.symbols.values() if s.kind == "buffer"]
    assert held.dtype == "float32", "sums are not rounded"
    samba.session.init_multigraph_runtime(pef)
    x = torch.full((4,), 1.03125)
    for _ in range(5):
        samba.session.run([samba.from_torch_tensor(x, name="xTrue")], None, graph_name="keepsTrue")
        gold(x)
    gold.keeps = False
    (made,) = samba.session.run([samba.from_torch_tensor(x, name="xFalse")], outputs[False], graph_name="keepsFalse")
    torch.testing.assert_close(samba.to_torch(made), gold(x), rtol=2**-7, atol=0)  # two roundings to bf16's 8 bits
    samba.session.to_cpu(model)
    torch.testing.assert_close(model.average, gold.average)  # f32
