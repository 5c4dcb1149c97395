"""Tensors of different graphs that share a region and differ in dtype on the host."""

import itertools

import pytest
import torch
from torch import nn

from rdukit.errors import CompileError
from sambaflow import samba
from sambaflow.samba.graph import FwdGraph
from sambaflow.samba.utils import trace_multigraph
from support import shows

pytestmark = shows("surface")

FLOATS = (torch.float32, torch.bfloat16)


class Made(nn.Module):
    """Gives its scaled input in one dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 3).to(self.dtype)


class Read(nn.Module):
    """Gives the square of what another graph leaves, in the dtype that this graph calls it."""

    def forward(self, kept: torch.Tensor) -> torch.Tensor:
        return kept * kept


def two_graphs(made: torch.dtype, read: torch.dtype, x: torch.Tensor) -> str:
    first, second = samba.from_torch_model_(Made(made)), samba.from_torch_model_(Read())
    given = samba.from_torch_tensor(x, name="x")
    (output,) = trace_multigraph(first, given)
    kept = samba.from_torch_tensor(torch.zeros(x.shape, dtype=read), name="kept")
    (square,) = trace_multigraph(second, kept)
    output.sn_region_name = "kept"
    square.sn_region_name = "square"
    samba.session.add_graph(FwdGraph(given, output, "make"))
    samba.session.add_graph(FwdGraph(kept, square, "read"))
    return str(samba.session.compile_multigraph(config_dict={"precision": "f32", "o0": True}))


@pytest.mark.parametrize(("made", "read"), list(itertools.product(FLOATS, FLOATS)))
def test_one_graph_reads_in_its_own_dtype_what_another_leaves_in_another(made: torch.dtype, read: torch.dtype) -> None:
    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    samba.session.init_multigraph_runtime(two_graphs(made, read, x))
    samba.session.run(input_tensors=[samba.from_torch_tensor(x, name="x")], graph_name="make")
    left = samba.session.get_tensors_by_name(["kept"])[0].data
    assert left.dtype == read
    assert torch.equal(left, (x * 3).to(made).to(read))
    samba.session.run(graph_name="read")
    square = samba.session.get_tensors_by_name(["square"])[0].data
    gold = (x * 3).to(made).to(read) ** 2
    assert square.dtype == read
    assert torch.equal(square, gold)


def test_a_region_of_integers_in_one_graph_and_floats_in_another_is_refused() -> None:
    with pytest.raises(CompileError, match="share region 'kept', but are int32 and float32"):
        two_graphs(torch.float32, torch.int32, torch.ones(2, 2))


def test_a_region_narrower_than_the_integers_that_another_graph_leaves_is_refused() -> None:
    with pytest.raises(CompileError, match="share region 'kept', but are uint8 and int64"):
        two_graphs(torch.int64, torch.uint8, torch.full((2, 2), 100, dtype=torch.int64))


def test_int64_of_type_promotion_goes_into_a_region_of_int32() -> None:
    x = torch.arange(4, dtype=torch.int64)
    samba.session.init_multigraph_runtime(two_graphs(torch.int64, torch.int32, x))
    samba.session.run(input_tensors=[samba.from_torch_tensor(x, name="x")], graph_name="make")
    samba.session.run(graph_name="read")
    assert samba.session.get_tensors_by_name(["square"])[0].data.tolist() == [0, 9, 36, 81]
