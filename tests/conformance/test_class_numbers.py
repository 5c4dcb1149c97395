"""Indices and class labels in forward: out of range is an error of the run, and sparse tables have dense gradients."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rdukit.errors import SectionFailed
from sambaflow import samba
from support import shows
from support.programs import compare_step, load_model

pytestmark = shows("pytorch", "operators", "o0", "o3")


class OneHot(nn.Module):
    """Labels [B] → [B, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(5, 5)

    def forward(self, labels: Any) -> Any:
        chosen = F.one_hot(labels, 5)
        return self.lin(chosen.float()), chosen


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("mode", ["o0", "o3"])
def test_one_hot_rows_are_those_of_torch(mode: str, precision: str, tmp_path: Path) -> None:
    labels = samba.from_torch_tensor(torch.tensor([1, 4, 0, 2, 4]), name="labels")
    compare_step(OneHot(), labels, tmp_path, optim_level=mode, precision=precision, tolerance=1e-2)


@pytest.mark.parametrize("wrong", [5, -1])
def test_a_class_out_of_range_ends_the_run(wrong: int, tmp_path: Path) -> None:
    loaded = load_model(OneHot(), samba.from_torch_tensor(torch.tensor([1, 4, 0]), name="labels"), tmp_path)
    loaded.run()
    loaded.inputs = samba.from_torch_tensor(torch.tensor([1, wrong, 0]), name="labels")
    with pytest.raises(SectionFailed, match=r"index out of (range|bounds)"):
        loaded.run()


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.bags = nn.Embedding(7, 5, sparse=True), nn.EmbeddingBag(7, 5, sparse=True, mode="sum")

    def forward(self, i: Any) -> Any:
        return self.rows(i) * self.bags(i)[:, None]


def test_a_sparse_table_has_the_gradient_of_a_dense_one(tmp_path: Path) -> None:
    model = Tables()
    dense = copy.deepcopy(model)
    dense.rows.sparse = dense.bags.sparse = False
    i = samba.from_torch_tensor(torch.tensor([[0, 3, 3, 6], [1, 1, 1, 2]]), name="i")
    compare_step(model, i, tmp_path, reference=dense)


def test_a_failure_on_tensors_without_data_prints_nothing_of_torch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(6, 6)

        def forward(self, x: Any) -> Any:
            return F.interpolate(self.lin(x)[None, None][:, :, :0], size=(3, 6)) + self.lin(x) @ x

    with pytest.raises(Exception, match=r"cannot run|failed in module"):
        load_model(Wrong(), samba.randn(4, 6, name="x"), tmp_path)
    assert "Traceback" not in capfd.readouterr().err and "fake_tensor" not in caplog.text
