"""Tensors that programs keep between traces, numbers that they look at while tracing, regions of several dtypes.

What the public model zoo's cached generation does, in small.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import CompileError, TraceError
from sambaflow import samba
from sambaflow.samba.graph import FwdGraph
from sambaflow.samba.utils import trace_multigraph
from sambaflow.tracing.tracer import trace_model
from support import shows
from support.programs import load_model

pytestmark = shows("pytorch", "precision")

BF16 = {"o1": True}
F32 = {"precision": "f32", "o1": True}


class Cache:
    """Makes a tensor once, and hands the same one out ever after."""

    def __init__(self) -> None:
        self.kept: dict[str, torch.Tensor] = {}

    def get(self, key: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]


class Rotated(nn.Module):
    """Multiplies by a table that is made of a buffer, and kept; ``padded`` checks zeros that it keeps."""

    def __init__(self, cache: Cache, table: torch.Tensor, padded: bool = False) -> None:
        super().__init__()
        self.register_buffer("table", table)
        self.table: torch.Tensor
        self.cache, self.padded = cache, padded

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.cache.get("cos", lambda: self.table.cos() + 1)
        if self.padded:
            zeros = self.cache.get("zeros", lambda: torch.zeros(2, 3))
            if torch.all(torch.eq(zeros, 0)).item():
                y = y + zeros
            else:
                raise AssertionError("zeros are zeros")
        return y


def run(name: str, inputs: list[Any], outputs: Any) -> torch.Tensor:
    (made,) = samba.session.run(inputs, outputs, graph_name=name)
    value: torch.Tensor = made.data
    return value


def two_graphs(config: dict[str, Any], padded: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two graphs share what the first keeps; their outputs, and the table."""
    cache, table = Cache(), torch.linspace(0, 2, 6).reshape(2, 3)
    models = [samba.from_torch_model_(Rotated(cache, table, padded)) for _ in range(2)]
    inputs = [samba.from_torch_tensor(torch.randn(2, 3), name=f"x{i}") for i in range(2)]
    for i, (model, x) in enumerate(zip(models, inputs, strict=True)):
        samba.session.add_graph(FwdGraph(x, trace_multigraph(model, x, f"g{i}"), f"g{i}"))
    samba.session.init_multigraph_runtime(samba.session.compile_multigraph(config_dict=config))
    made = [run(f"g{i}", [inputs[i]], models[i].output_tensors) / inputs[i].data for i in range(2)]
    return made[0], made[1], table


def test_a_second_graph_makes_what_the_first_kept_again() -> None:
    first, second, table = two_graphs(F32)
    torch.testing.assert_close(first, table.cos() + 1)
    torch.testing.assert_close(second, table.cos() + 1)


def test_a_graph_may_look_at_numbers_that_depend_on_no_input() -> None:
    first, second, table = two_graphs(F32, padded=True)
    torch.testing.assert_close(first, table.cos() + 1)
    torch.testing.assert_close(second, table.cos() + 1)


class LooksAtValue(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class LooksAtRandom(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if torch.rand(()).item() > 0.5 else -x


@pytest.mark.parametrize("kind", [LooksAtValue, LooksAtRandom])
def test_a_number_that_depends_on_inputs_or_chance_is_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(TraceError, match="needs a tensor's value"):
        trace_model(samba.from_torch_model_(kind()), samba.randn(2, 3, name="x"), "m")


class Leaks(nn.Module):
    """Keeps a tensor that depends on its input."""

    def __init__(self, cache: Any) -> None:
        super().__init__()
        self.cache = cache

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cache = self.cache if isinstance(self.cache, Cache) else self.cache()
        return x + cache.get("doubled", lambda: x * 2)


def test_a_kept_tensor_that_depends_on_an_input_is_refused_with_the_input() -> None:
    """At once where the module or its code holds it, in the next trace where no code tells where it lies."""
    cache = Cache()
    for place in (Cache(), lambda: cache):
        with pytest.raises(TraceError, match=r"graph 'first'.*input 'a'"):
            trace_model(samba.from_torch_model_(Leaks(place)), samba.randn(2, name="a"), "first")
    hidden = itertools.repeat(Cache())
    trace_model(samba.from_torch_model_(Leaks(hidden.__next__)), samba.randn(2, name="a"), "first")
    with pytest.raises(TraceError, match=r"graph 'first'.*input 'a'"):
        trace_model(samba.from_torch_model_(Leaks(hidden.__next__)), samba.randn(2, name="b"), "second")


class Counts(nn.Module):
    """Steps an int32 index; torch makes int64 of it and a default constant."""

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return torch.minimum(index + 1, torch.full((2, 1), 3))


def test_an_integer_output_takes_the_dtype_of_its_region() -> None:
    model = samba.from_torch_model_(Counts())
    index = samba.from_torch_tensor(torch.zeros(2, 1, dtype=torch.int32), name="index")
    outputs = trace_multigraph(model, index)
    outputs[0].sn_region_name = "index"
    samba.session.add_graph(FwdGraph(index, outputs, "count"))
    samba.session.init_multigraph_runtime(samba.session.compile_multigraph(config_dict=BF16))
    samba.session.run([index], None, graph_name="count")
    for _ in range(4):
        samba.session.run([], None, graph_name="count")
    (held,) = samba.session.get_tensors_by_name(["index"])
    assert held.data.dtype == torch.int32
    assert held.data.flatten().tolist() == [3, 3]


class Logits(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 3).float()


class Best(nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.argmax(-1).int()


def test_a_region_written_in_f32_and_read_in_bf16_is_held_in_f32() -> None:
    writer, reader = samba.from_torch_model_(Logits()), samba.from_torch_model_(Best())
    x = samba.from_torch_tensor(torch.tensor([[1.0, 5.0, 2.0], [7.0, 0.0, 1.0]]), name="x")
    logits = samba.SambaTensor(shape=(2, 3), dtype=torch.float32, name="logits")
    written = trace_multigraph(writer, x)
    written[0].sn_region_name = "logits"
    best = trace_multigraph(reader, logits)
    samba.session.add_graph(FwdGraph(x, written, "write"))
    samba.session.add_graph(FwdGraph(logits, best, "read"))
    samba.session.init_multigraph_runtime(samba.session.compile_multigraph(config_dict=BF16))
    samba.session.run([x], None, graph_name="write")
    (held,) = samba.session.get_tensors_by_name(["logits"])
    torch.testing.assert_close(held.data, x.data * 3)  # whole numbers below 256 are exact in bf16
    assert run("read", [], best).tolist() == [1, 0]


def test_floats_and_integers_cannot_share_a_region() -> None:
    model = samba.from_torch_model_(Best())
    logits = samba.randn(2, 3, name="logits")
    outputs = trace_multigraph(model, logits)
    outputs[0].sn_region_name = "logits"
    samba.session.add_graph(FwdGraph(logits, outputs, "read"))
    with pytest.raises(CompileError, match="tensors of one region must have one dtype"):
        samba.session.compile_multigraph(config_dict=BF16)


class BiasCache(nn.Module):
    """Attention whose biases are looked up once and kept while the model evaluates, as LeViT's are."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(6, 6), nn.Linear(6, 6)
        self.biases = nn.Parameter(torch.randn(5))
        self.kept: dict[str, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> Any:
        scores = self.query(x) @ self.key(x).transpose(-1, -2) * 0.5
        if "biases" not in self.kept:
            self.kept["biases"] = self.biases[torch.arange(4)]
        return (scores + self.kept["biases"]).softmax(-1)


def test_what_forward_caches_is_in_the_same_place_when_it_is_traced_again(tmp_path: Path) -> None:
    net = BiasCache().eval()
    x = samba.randn(2, 4, 6, name="x")
    expected = net(x.data)
    net.kept.clear()
    (out,) = load_model(net, x, tmp_path, precision="f32").run()
    assert torch.allclose(out.data, expected, atol=1e-6)
