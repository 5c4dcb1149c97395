"""A weight that several sections use has a gradient of several contributions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.pef import read_pef
from sambaflow import samba
from sambaflow.samba import utils

WORDS, WIDTH = 1024, 64
SECTIONS = ["fwd", "bckwd", "opt"]


class Tied(nn.Module):
    """Token embedding and output layer share their weight: 256 KiB, enough to be summed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(self.head(torch.tanh(self.mix(self.words(tokens)))), targets)


@pytest.mark.parametrize("mode", ["o0", "o1"])
def test_a_tied_weights_gradient_is_summed_in_place_and_stays_readable(mode: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, gold = Tied(), Tied()
    gold.load_state_dict(model.state_dict())
    tokens, targets = torch.randint(WORDS, (32,)), torch.randint(WORDS, (32,))
    samba.from_torch_model_(model)
    inputs = (samba.from_torch_tensor(tokens, name="tokens"), samba.from_torch_tensor(targets, name="targets"))
    optimizer = samba.optim.SGD(model.parameters(), lr=0.5, momentum=0.0)
    config = {"output_folder": str(tmp_path), "optim_level": mode, "precision": "f32", "log_level": "error"}
    pef = samba.session.compile(model, inputs, optimizer, config_dict=config)
    operators = [node.op for kernel in read_pef(pef).kernels.values() for node in kernel.nodes]
    assert "aten.add_.Tensor" in operators and "aten.zero_.default" in operators
    traced = utils.trace_graph(model, inputs, optimizer, pef=pef)
    plain = torch.optim.SGD(gold.parameters(), lr=0.5)
    for _ in range(3):
        samba.session.run(inputs, traced, section_types=SECTIONS)
        plain.zero_grad()
        gold(tokens, targets).backward()  # type: ignore[no-untyped-call]
        plain.step()
        # f32, the same sums in another order: gradients are about 1e-3.
        found = model.words.weight.sn_grad
        torch.testing.assert_close(found, gold.words.weight.grad, rtol=1e-4, atol=1e-6)
    samba.session.to_cpu(model)
    torch.testing.assert_close(model.words.weight.data, gold.words.weight.data, rtol=1e-4, atol=1e-5)
