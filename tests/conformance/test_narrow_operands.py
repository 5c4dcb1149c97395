"""What the device takes and torch refuses: narrow integers as indices and labels, mixed floats, batched addmm."""

from pathlib import Path

import pytest
import torch
from torch import nn

import sambaflow.samba as samba
from sambaflow.samba import utils
from support import shows

pytestmark = shows("surface", "operators")


class Tagger(nn.Module):
    """Embedding by int16 ids, a per-token loss by int16 labels."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(self.table(ids))
        loss = nn.functional.cross_entropy(logits.view(-1, 5), labels.view(-1), reduction="none")
        return loss, logits


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path))
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    samba.session.reset()


def test_int16_ids_and_labels_train_as_int64_ones_do(tmp_path: Path) -> None:
    utils.set_seed(0)
    model = Tagger()
    plain = Tagger()
    plain.load_state_dict(model.state_dict())
    samba.from_torch_model_(model)
    ids, labels = torch.randint(16, (3, 4)), torch.randint(5, (3, 4))
    inputs = (samba.SambaTensor(ids.short(), name="ids"), samba.SambaTensor(labels.short(), name="labels"))
    optim = samba.optim.SGD(model.parameters(), lr=0.5)
    config = {"output_folder": str(tmp_path), "pef_name": "t", "precision": "f32", "log_level": "error"}
    pef = samba.session.compile(model, inputs, optim, config_dict=config)
    traced = utils.trace_graph(model, inputs, optim, pef=pef)
    loss, _ = samba.session.run(inputs, traced)
    expected, _ = plain(ids, labels)
    torch.testing.assert_close(samba.to_torch(loss), expected.detach())
    expected.sum().backward()
    torch.testing.assert_close(model.head.weight.sn_grad, plain.head.weight.grad)
    samba.session.close()


@pytest.mark.parametrize("is_transposed", [True, False])
def test_addmm_takes_batches_and_transposed_weights(is_transposed: bool) -> None:
    torch.manual_seed(0)
    bias, x, weight = torch.randn(5), torch.randn(2, 3, 4), torch.randn(4, 5)
    given = weight.t().contiguous() if is_transposed else weight
    made = samba.addmm(samba.SambaTensor(bias), x, given, is_transposed=is_transposed)
    torch.testing.assert_close(samba.to_torch(made), bias + x @ weight)


def test_mixed_floats_are_promoted_to_the_widest() -> None:
    made = torch.nn.functional.linear(samba.SambaTensor(torch.ones(2, 3)), torch.ones(4, 3, dtype=torch.bfloat16))
    assert made.dtype == torch.float32
    assert samba.to_torch(made).tolist() == [[3.0] * 4] * 2
