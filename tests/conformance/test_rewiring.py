"""``tensor.dsts``: who reads a traced tensor, and programs that change it (SDK reference 5)."""

import pytest
import torch
from torch import nn

from rdukit.errors import CompileError, InvalidArgument
from sambaflow import samba
from sambaflow.samba.graph import FwdGraph
from sambaflow.samba.sambatensor import SambaTensor
from sambaflow.samba.utils import trace_multigraph
from support import shows

pytestmark = shows("surface")

F32 = {"precision": "f32", "pef_name": "rewired", "log_level": "error"}


def traced() -> tuple[nn.Module, nn.Module, SambaTensor, SambaTensor, SambaTensor]:
    """A body from ``x`` to hidden values, and a head from ``other`` to results; both [2, 4]."""
    body, head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 4)
    samba.from_torch_model_(body)
    samba.from_torch_model_(head)
    x, other = samba.randn(2, 4, name="x"), samba.randn(2, 4, name="other")
    (hidden,) = trace_multigraph(body, x)
    (result,) = trace_multigraph(head, other)
    return body, head, x, hidden, result


def test_a_tensor_knows_the_operators_that_read_it() -> None:
    _, _, x, hidden, result = traced()
    (consumer,) = x.dsts
    assert consumer.op_type == "linear"
    assert [t.sn_name for t in consumer.inputs] == ["x", "sequential__0__weight", "sequential__0__bias"]
    assert hidden.dsts == result.dsts == [] == samba.randn(2, name="stranger").dsts


def test_a_head_that_is_rewired_to_a_body_runs_in_one_graph_with_it() -> None:
    pef = ""
    for step in ("compile", "run"):
        samba.session.reset()
        samba.utils.set_seed(0)
        body, head, x, hidden, result = traced()
        (reader,) = next(t for t in samba.session.multigraph.inputs.values() if t.sn_name == "other").dsts
        reader.inputs[0] = hidden
        samba.session.add_graph(FwdGraph(x, result, "fused"))
        if step == "compile":
            pef = samba.session.compile_multigraph(name="rewired", config_dict=F32)
    samba.session.init_multigraph_runtime(pef)
    (made,) = samba.session.run(x, result, graph_name="fused")
    # f32, the same operators in the same order
    assert torch.allclose(made.torch(), head(body(x)).torch(), atol=1e-6)


def test_a_program_moves_consumers_from_one_tensor_to_another_by_assigning_dsts() -> None:
    pef = ""
    for step in ("compile", "run"):
        samba.session.reset()
        samba.utils.set_seed(0)
        body, head, x, hidden, result = traced()
        other = next(t for t in samba.session.multigraph.inputs.values() if t.sn_name == "other")
        moved = other.dsts
        hidden.dsts = hidden.dsts + moved
        for reader in moved:
            for place, tensor in enumerate(reader.inputs):
                if tensor is other:
                    reader.inputs[place] = hidden
        assert hidden.dsts == moved
        samba.session.add_graph(FwdGraph(x, result, "fused"))
        if step == "compile":
            pef = samba.session.compile_multigraph(name="rewired", config_dict=F32)
    samba.session.init_multigraph_runtime(pef)
    (made,) = samba.session.run(x, result, graph_name="fused")
    assert torch.allclose(made.torch(), head(body(x)).torch(), atol=1e-6)  # f32, the same operators in the same order


def test_assigned_dsts_that_are_not_the_readers_are_refused() -> None:
    _, _, x, hidden, _ = traced()
    samba.session.add_graph(FwdGraph(x, hidden, "body"))
    with pytest.raises(InvalidArgument, match="dsts of 'x' holds a str"):
        x.dsts = ["linear"]
    readers, x.dsts = x.dsts, []
    with pytest.raises(CompileError, match="dsts of 'x' lacks operator"):
        samba.session.compile_multigraph(name="rewired", config_dict=F32)
    x.dsts, hidden.dsts = readers, readers
    with pytest.raises(CompileError, match=r"dsts of '.*' holds operator '.*', which does not read it"):
        samba.session.compile_multigraph(name="rewired", config_dict=F32)


def test_what_does_not_fit_is_refused_when_graphs_are_cut() -> None:
    _, _, x, hidden, result = traced()
    (reader,) = x.dsts
    reader.inputs[0] = SambaTensor(shape=(3, 3), dtype=torch.float32, name="unknown")
    samba.session.add_graph(FwdGraph(x, hidden, "body"))
    with pytest.raises(CompileError, match=r"'unknown' was not traced; expected in place of 'x': .*float32\[2, 4\]"):
        samba.session.compile_multigraph(config_dict=F32)
    reader.inputs.pop()
    with pytest.raises(CompileError, match="not added or removed"):
        samba.session.compile_multigraph(config_dict=F32)
    assert result.sn_name
