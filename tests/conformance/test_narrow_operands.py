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


class Indexer(nn.Module):
    """Every operator that takes class labels or indices: ``places`` [4], ``grid`` [4, 5], numbers below 4."""

    def forward(self, x: torch.Tensor, places: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
        functional = nn.functional
        log = x.log_softmax(-1)
        return (
            functional.cross_entropy(x, places.view(-1), reduction="none"),
            functional.nll_loss(log, places, reduction="none"),
            functional.nll_loss(log[:, :, None, None], grid[:, :1, None], reduction="none"),
            functional.multi_margin_loss(x, places, reduction="none"),
            functional.multilabel_margin_loss(x, grid, reduction="none"),
            functional.embedding(grid, x), functional.one_hot(places, 5),
            x.gather(1, grid), x.scatter(0, grid, 2.0), x.index_select(0, places),
            x.index_add(0, places * 0, x), x.index_copy(0, places, x.flip(1)), x.index_fill(0, places, 3.0),
            x[places], x[places, places], x.take(grid), torch.take(x, index=grid), x.take_along_dim(grid, 1),
            grid.gather(1, index=grid),
        )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16])
def test_every_operator_of_indices_and_labels_takes_narrow_integers(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, places, grid = torch.randn(4, 5), torch.tensor([2, 0, 3, 1]), torch.randint(4, (4, 5))
    inputs = tuple(
        samba.SambaTensor(tensor, name=name)
        for name, tensor in {"x": x, "places": places.to(dtype), "grid": grid.to(dtype)}.items()
    )
    model = Indexer()
    samba.from_torch_model_(model)
    config = {"output_folder": str(tmp_path), "pef_name": "t", "precision": "f32", "log_level": "error"}
    pef = samba.session.compile(model, inputs, inference=True, config_dict=config)
    traced = utils.trace_graph(model, inputs, None, pef=pef)
    *wanted, of_indices = Indexer()(x, places, grid)
    for made, expected in zip(samba.session.run(inputs, traced), [*wanted, of_indices.to(dtype)], strict=True):
        torch.testing.assert_close(samba.to_torch(made), expected)  # f32, torch's own operators
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
