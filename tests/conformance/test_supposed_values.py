"""RDUKIT_SUPPOSE_EXAMPLE: values that forward reads from inputs are those of the example, and each run checks it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rdukit.errors import SectionFailed, TraceError
from sambaflow import samba
from support import shows
from support.programs import compare_step, compile_model, load_model

pytestmark = shows("pytorch", "settings")


class Reading(nn.Module):
    """``loss`` of lin(x) [6, 4] and labels [6]."""

    def __init__(self, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self._loss = loss

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self._loss(self.lin(x), labels)


def labelled_rows(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """As DeBERTa's."""
    found = (labels >= 0).nonzero()
    if found.size(0) == 0:
        return y.sum() * 0
    rows = torch.gather(y, 0, found.expand(found.size(0), y.size(1)))
    return F.cross_entropy(rows, torch.gather(labels, 0, found.view(-1)))


def by_mask(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(y[labels >= 0], labels[labels >= 0])


def asserted(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    assert (labels >= 0).sum().item() <= len(y)
    return F.cross_entropy(y, labels, ignore_index=-1)


def without_gaps(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(y, labels, ignore_index=-1) if (labels < 0).any() else F.cross_entropy(y, labels)


LOSSES = [labelled_rows, by_mask, asserted, without_gaps]


def given(labels: list[int]) -> tuple[Any, ...]:
    return samba.randn(6, 4, name="x"), samba.from_torch_tensor(torch.tensor(labels), name="labels")


@pytest.mark.parametrize("labels", [[0, 1, 2, 3, 0, 1], [0, -1, 2, 3, -1, 1]])
@pytest.mark.parametrize("loss", LOSSES)
def test_other_batches_like_the_example_are_right_and_any_other_is_refused(
    loss: Any, labels: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_SUPPOSE_EXAMPLE", "1")
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    inputs = given(labels)
    compare_step(Reading(loss), inputs, tmp_path)
    model = Reading(loss)
    loaded = load_model(model, inputs, tmp_path / "other", precision="f32")
    x, held = inputs
    held.data = torch.tensor([(n + 1) % 4 if n >= 0 else n for n in labels])
    torch.testing.assert_close(loaded.run()[0].data, samba.to_torch(model(x.data, held.data)), rtol=1e-5, atol=1e-6)
    held.data = torch.tensor([2, 2, -1, 2, 2, 2] if -1 not in labels else [2] * 6)
    # Guards run last: rows that are not labelled may end the run before, at an index beyond its table.
    with pytest.raises(
        SectionFailed, match=r"test_supposed_values\.py:\d+.*RDUKIT_SUPPOSE_EXAMPLE|-1 is out of bounds"
    ):
        loaded.run()


@pytest.mark.parametrize("loss", LOSSES)
def test_without_it_they_are_refused_and_the_setting_is_named(loss: Any, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="RDUKIT_SUPPOSE_EXAMPLE=1"):
        compile_model(Reading(loss), given([0, 1, 2, 3, 0, 1]), None, tmp_path)


def test_what_depends_on_weights_stays_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_SUPPOSE_EXAMPLE", "1")
    model = Reading(lambda y, labels: y[y > 0].sum())
    with pytest.raises(TraceError, match="depends on data"):
        compile_model(model, given([0] * 6), None, tmp_path)
