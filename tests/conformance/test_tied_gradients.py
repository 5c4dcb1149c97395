"""A weight that several sections use has a gradient of several contributions."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.pef import read_pef
from sambaflow import samba
from sambaflow.samba import utils
from support import shows

pytestmark = shows("pytorch", "o0", "o1", "o3")

WORDS, WIDTH = 1024, 64
SECTIONS = ["fwd", "bckwd", "opt"]


class Tied(nn.Module):
    """Token embedding and output layer share their weight: 256 KiB, enough to be summed in place."""

    def __init__(self, padding_idx: int | None = None) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(WORDS, WIDTH, padding_idx=padding_idx), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(self.head(torch.tanh(self.mix(self.words(tokens)))), targets)


class Twice(nn.Module):
    """Two lookups in one table, of which one scales what it reads, and one linear layer three times."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.wide = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Any, targets: Any) -> Any:
        looked_up = self.words(tokens) + 2 * self.words(targets)
        hidden = torch.tanh(nn.functional.linear(self.wide(looked_up), self.wide.weight.t()))
        return nn.functional.cross_entropy(self.wide(torch.tanh(hidden)), targets)


def load(model: nn.Module, mode: str, precision: str, folder: Path) -> tuple[Any, Any, Any]:
    """The compiled PEF, its inputs and its outputs, loaded."""
    tokens, targets = torch.randint(WORDS, (32,)), torch.randint(WORDS, (32,))
    samba.from_torch_model_(model)
    inputs = (samba.from_torch_tensor(tokens, name="tokens"), samba.from_torch_tensor(targets, name="targets"))
    optimizer = samba.optim.SGD(model.parameters(), lr=0.5, momentum=0.0)
    config = {"output_folder": str(folder), "optim_level": mode, "precision": precision, "log_level": "error"}
    pef = samba.session.compile(model, inputs, optimizer, config_dict=config)
    return read_pef(pef), inputs, utils.trace_graph(model, inputs, optimizer, pef=pef)


def plain_gradients(gold: nn.Module, inputs: Any) -> dict[str, torch.Tensor]:
    gold.zero_grad()
    gold(*(samba.to_torch(tensor) for tensor in inputs)).backward()
    return {name: parameter.grad for name, parameter in gold.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("mode", ["o0", "o1"])
def test_a_tied_weights_gradient_is_summed_where_it_lies_and_stays_readable(mode: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, gold = Tied(), Tied()
    gold.load_state_dict(model.state_dict())
    loaded, inputs, traced = load(model, mode, "f32", tmp_path)
    (graph,) = loaded.pef.graphs.values()
    assert len(graph.gradients["tied__words__weight"]) == 1
    assert "aten.index_put_.default" in {n.op for kernel in loaded.kernels.values() for n in kernel.nodes}
    plain = torch.optim.SGD(gold.parameters(), lr=0.5)
    for _ in range(3):
        samba.session.run(inputs, traced, section_types=SECTIONS)
        expected = plain_gradients(gold, inputs)
        plain.step()
        # f32, the same sums in another order: gradients are about 1e-3.
        torch.testing.assert_close(model.words.weight.sn_grad, expected["words.weight"], rtol=1e-4, atol=1e-6)
    samba.session.to_cpu(model)
    torch.testing.assert_close(model.words.weight.data, gold.words.weight.data, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
@pytest.mark.parametrize("make", [Tied, lambda: Tied(padding_idx=3), Twice], ids=["tied", "padded", "twice"])
def test_backward_alone_and_section_by_section_gives_the_gradient_once(make: Any, mode: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = make()
    gold = copy.deepcopy(model)
    loaded, inputs, traced = load(model, mode, "f32", tmp_path)
    (graph,) = loaded.pef.graphs.values()
    expected = plain_gradients(gold, inputs)
    samba.session.run(inputs, traced, section_types=["fwd", "bckwd"])
    samba.session.run(inputs, traced, section_types=["fwd"])
    samba.session.run(inputs, section_types=["bckwd"])
    samba.session.run(inputs, section_types=["fwd"])
    for number in graph.schedule:
        if loaded.pef.sections[number].type == "bckwd":
            samba.session.run(inputs, section_ids=[number])
    for name, parameter in model.named_parameters():
        # f32, the same sums in another order: gradients are about 1e-3.
        torch.testing.assert_close(parameter.sn_grad, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
def test_in_bf16_a_tied_weights_gradient_is_near_that_of_f32(mode: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tied()
    gold = copy.deepcopy(model)
    _, inputs, traced = load(model, mode, "bf16", tmp_path)
    expected = plain_gradients(gold, inputs)["words.weight"]
    samba.session.run(inputs, traced, section_types=["fwd", "bckwd"])
    # bf16: each of the few operators on the way rounds by 2^-9, relative to the largest.
    assert (model.words.weight.sn_grad - expected).abs().max() < 2e-2 * expected.abs().max()
