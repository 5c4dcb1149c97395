"""Buffers that forward updates: caches are held in the device's dtype, what adds up over calls in f32."""

import pytest
import torch

from sambaflow import samba
from sambaflow.samba.graph import FwdGraph
from sambaflow.samba.utils import trace_multigraph
from support import shows

pytestmark = shows("precision", "o0", "o3")


class Keeps(torch.nn.Module):
    """A cache [4, 3] that only takes what is computed without it; a sum and a mean that add up over calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 3))
        self.register_buffer("nested", torch.zeros(2, 4, 3))
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("mean", torch.zeros(4, 3))
        self.cache: torch.Tensor
        self.nested: torch.Tensor
        self.total: torch.Tensor
        self.mean: torch.Tensor

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, at, x)
        self.cache[1:2] = x * 2
        self.nested[1, :1] = x
        self.total.add_(x[0])
        self.mean.index_copy_(0, at, x * 0.1 + 0.9 * self.mean.index_select(0, at))
        return self.cache.matmul(x.T) + self.total.sum() + self.mean.sum() + self.nested.sum()


@pytest.mark.parametrize("mode", ["o0", "o3"])
def test_a_cache_is_rounded_and_what_adds_up_over_calls_is_not(mode: str) -> None:
    model = samba.from_torch_model_(Keeps())
    x, at = samba.randn(1, 3, name="x"), samba.zeros(1, dtype=torch.int64, name="at")
    samba.session.add_graph(FwdGraph((x, at), trace_multigraph(model, (x, at)), "step"))
    samba.session.init_multigraph_runtime(samba.session.compile_multigraph(config_dict={mode: True}))
    symbols = samba.session._loaded().pef.symbols
    found = {name: symbols[f"keeps__{name}"].dtype for name in ("cache", "nested", "total", "mean")}
    assert found == {"cache": "bfloat16", "nested": "bfloat16", "total": "float32", "mean": "float32"}
    gold = Keeps()
    for i in range(3):
        given = {"x": torch.randn(1, 3), "at": torch.tensor([i + 1])}
        made = samba.session.run(samba.from_named_dict(given), model.output_tensors, graph_name="step")[0].data
        # bf16 has 8 bits, and the sums are of a dozen terms.
        torch.testing.assert_close(made, gold(**given), rtol=5e-2, atol=5e-2)
    samba.session.to_cpu(model)
    torch.testing.assert_close(model.cache, gold.cache, rtol=2**-7, atol=1e-6)
