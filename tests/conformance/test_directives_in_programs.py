"""Hints inside a forward: which operators they reach, how they group, and that they change no number."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from rdukit.errors import InvalidArgument, TraceError
from rdukit.pef import read_pef
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.directives import op_fusion, sdpa_directives
from support import shows
from support.programs import load_model

pytestmark = shows("surface", "o0", "o1", "o3")


class Blocks(nn.Module):
    """(x [B, 8]) → [B, 8]: functional calls inside blocks, one block continued later."""

    def __init__(self, annotated: bool = True, reuse: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.again = op_fusion(func_name="gate", user_annotated=annotated, reuse_last_id=reuse)
        self.annotated = annotated

    def forward(self, x: Any) -> Any:
        with op_fusion(func_name="gate", heuristic="SAFE_GEMM", user_annotated=self.annotated):
            a = torch.sigmoid(self.first(x)) * 2
        b = torch.tanh(x)
        with self.again:
            c = functional.gelu(b)
        with op_fusion(func_name="tail", user_annotated=True), sdpa_directives({"sdp_block_size": 64}):
            return self.second(a + c)


def features(batch: int = 4) -> samba.SambaTensor:
    return samba.randn(batch, 8, name="x", batch_dim=0)


def groups(pef: str) -> dict[str, tuple[str, ...]]:
    """Section → the kinds of its operators, of sections that a block made."""
    return {
        section.name: tuple(re.sub(r"_\d+$", "", name.rpartition("__")[2]) for name in section.operators)
        for section in read_pef(pef).pef.sections
        if section.rule is not None
    }


def test_functional_calls_made_directly_in_forward_belong_to_their_block(tmp_path: Path) -> None:
    loaded = load_model(Blocks(), features(), tmp_path, optim_level="o1")
    assert groups(loaded.pef) == {
        "gate": ("linear", "sigmoid", "mul"), "gate_1": ("gelu",), "tail": ("add", "linear"),
    }  # fmt: skip


def test_reuse_last_id_continues_the_last_block_of_the_name(tmp_path: Path) -> None:
    loaded = load_model(Blocks(reuse=True), features(), tmp_path, optim_level="o1")
    assert groups(loaded.pef) == {"gate": ("linear", "sigmoid", "mul", "gelu"), "tail": ("add", "linear")}


def test_blocks_do_not_change_results_and_a_run_traces_to_the_same_graph(tmp_path: Path) -> None:
    net = Blocks()
    plain = copy.deepcopy(net)
    made = []
    for mode in ("o0", "o1", "o3"):
        loaded = load_model(net, features(), tmp_path, optim_level=mode, precision="f32")
        utils.set_seed(0)
        batch = features()
        (out,) = loaded.run(input_tensors=batch)
        # f32 in other groupings: the same operators on the same numbers, so the same bits within rounding of a sum
        made.append((out.torch() - plain(batch.torch()).detach()).abs().max().item())
        samba.session.reset()
    assert max(made) < 1e-6


def test_each_call_of_a_module_that_op_fusion_marks_is_a_group(tmp_path: Path) -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)])
            for layer in self.layers:
                op_fusion(layer, "Encoder")

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return self.layers[0](x)

    loaded = load_model(Stack(), features(), tmp_path, optim_level="o1")
    assert groups(loaded.pef) == dict.fromkeys(("Encoder", "Encoder_1", "Encoder_2"), ("linear", "tanh"))


def test_blocks_nest_the_inner_one_wins_and_labels_reach_the_traced_operators() -> None:
    class Nested(nn.Module):
        def forward(self, x: Any) -> Any:
            with op_fusion(func_name="outer"):
                y = x * 2
                with samba.session._add_directives({"opfusion_id": "q_proj"}), op_fusion(func_name="inner"):
                    assert "opfusion_id" in samba.session._context_directives
                    y = y + 1
                return torch.tanh(y)

    net = Nested()
    samba.from_torch_model_(net)
    traced = samba.session._trace(net, features(), None)
    labels = [operator.labels for operator in traced.graph.operators]
    assert [label["op_fusion"] for label in labels] == ["outer", "inner", "outer"]
    assert [label.get("opfusion_id") for label in labels] == [None, "q_proj", None]
    assert labels[0]["op_fusion_id"] == labels[2]["op_fusion_id"] != labels[1]["op_fusion_id"]
    assert net(torch.zeros(1, 8)).shape == (1, 8), "hints do nothing on the host"


class Exposing(nn.Module):
    """(x [B, 8]) → (loss [], out [B, 8]); its hidden values and their mean are exposed."""

    def __init__(self, name: str = "hidden") -> None:
        super().__init__()
        self.a, self.b, self.name_of_hidden = nn.Linear(8, 8), nn.Linear(8, 8), name

    def forward(self, x: Any) -> Any:
        hidden = torch.tanh(self.a(x))
        samba.session.add_aux_tensor(hidden, self.name_of_hidden)
        samba.session.add_aux_tensor(hidden.mean(), "mean")
        out = self.b(hidden)
        return out.pow(2).mean(), out


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
def test_an_auxiliary_tensor_is_an_output_of_the_graph_but_not_of_the_model(tmp_path: Path, mode: str) -> None:
    net = Exposing()
    gold = copy.deepcopy(net)
    loaded = load_model(
        net, features(), tmp_path, lambda p: samba.optim.SGD(p, lr=0.1), optim_level=mode, precision="f32"
    )
    assert len(loaded.outputs) == len(net.output_tensors) == 2
    assert samba.session.is_valid_aux_tensor_name("hidden") and not samba.session.is_valid_aux_tensor_name("other")
    loss, _ = loaded.run()
    expected = torch.tanh(gold.a(loaded.inputs.torch())).detach()
    read = samba.session.get_tensors_by_name(["hidden", "mean"])
    assert torch.allclose(read[0].data, expected, atol=1e-6)
    assert read[1].data.item() == pytest.approx(expected.mean().item(), abs=1e-6)
    assert torch.equal(samba.session.aux_tensors["hidden"].torch(), read[0].data)
    gold(loaded.inputs.torch())[0].backward()
    assert torch.allclose(net.a.weight.sn_grad, gold.a.weight.grad, atol=1e-6), "no gradient flows into it"
    assert loss.item() == pytest.approx(gold(loaded.inputs.torch())[0].item(), rel=1e-5)


def test_names_of_auxiliary_tensors_are_checked() -> None:
    for name, error in (("", InvalidArgument), ("mean", InvalidArgument), ("exposing__a__weight", TraceError)):
        net = Exposing(name)
        samba.from_torch_model_(net)
        with pytest.raises(error, match="add_aux_tensor"):
            samba.session._trace(net, features(), None)
        samba.session.reset()


def test_traced_outputs_read_what_the_device_holds_now(tmp_path: Path) -> None:
    net = nn.Linear(8, 8)
    loaded = load_model(net, features(), tmp_path)
    made = []
    for _ in range(2):
        batch = features()
        loaded.run(input_tensors=batch)
        made.append(samba.to_torch(loaded.outputs[0]))
        utils.assert_close(made[-1], net(batch), threshold=2e-2)  # bf16 on the device
    assert not torch.equal(*made)
