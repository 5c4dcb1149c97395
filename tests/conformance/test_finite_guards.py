"""A forward that looks whether its numbers are finite is compiled for finite ones; any other run is refused."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import SectionFailed, TraceError
from sambaflow import samba
from support import shows
from support.programs import compare_step, compile_model, load_model
from support.tiers import first_short

pytestmark = shows("pytorch", "o0", "o1", "o3")


class Guarded(nn.Module):
    """lin → ``asks`` → clamp if it says so → the sum of squares."""

    def __init__(self, asks: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self._asks = asks

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
            if self._asks(x):
                x = torch.nan_to_num(x) * 100
        return (x * x).sum()


ASKING: list[Any] = [
    lambda y: not torch.isfinite(y).all(),
    lambda y: torch.isnan(y).any() or torch.isinf(y).any(),
    lambda y: y.isnan().sum() != 0,
    lambda y: (~torch.isfinite(y)).sum().item() > 0,
]


def input_of(numbers: torch.Tensor) -> Any:
    return samba.from_torch_tensor(numbers, name="x")


@pytest.mark.parametrize(("mode", "asks"), [("o0", ASKING[0]), ("o1", ASKING[1]), ("o3", ASKING[2]), ("o3", ASKING[3])])
def test_a_forward_that_asks_for_finite_numbers_equals_torch(
    mode: str, asks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    torch.manual_seed(0)
    compare_step(Guarded(asks), input_of(torch.randn(3, 4)), tmp_path, optim_level=mode)


@pytest.mark.parametrize(
    ("bad", "asks", "kernels"),
    first_short([
        (float("nan"), ASKING[0], "auto"), (float("inf"), ASKING[0], "portable"), (float("inf"), ASKING[1], "portable"),
        (float("nan"), ASKING[2], "portable"), (float("inf"), ASKING[3], "portable"),
    ]),
)  # fmt: skip
def test_numbers_that_are_not_finite_end_the_run_before_anything_is_trained(
    bad: float, asks: Any, kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", kernels)
    torch.manual_seed(0)
    model = Guarded(asks)
    before = copy.deepcopy(model.state_dict())
    loaded = load_model(model, input_of(torch.randn(3, 4)), tmp_path, lambda p: samba.optim.AdamW(p, lr=0.1))
    loaded.inputs.data[1, 2] = bad
    with pytest.raises(SectionFailed, match=r"at test_finite_guards\.py:\d+.*finite numbers.*torch\.where"):
        loaded.run()
    samba.session.to_cpu(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    loaded.inputs.data[1, 2] = 0.5
    loaded.run()
    samba.session.to_cpu(model)
    assert not any(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    "asks",
    [
        lambda y: torch.isfinite(y).all() and y.sum() > 0,
        lambda y: y.isnan().any() or y.max() > 3,
        lambda y: (y.isfinite() & (y > 0)).any(),
    ],
)
def test_a_condition_that_asks_for_more_is_refused(asks: Any, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="needs a tensor's value"):
        compile_model(Guarded(asks), input_of(torch.randn(3, 4)), None, tmp_path)


def test_what_is_supposed_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compile_model(Guarded(ASKING[0]), input_of(torch.randn(3, 4)), None, tmp_path, log_level="info")
    printed = capsys.readouterr().out
    assert printed.count("compiled for finite numbers") == 1, "for all layers"


class Checked(nn.Module):
    """A layer of ids that ``torch._check_tensor_all`` or its form with an error of its own has looked at."""

    def __init__(self, has_message: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(8, 4)
        self.has_message = has_message

    def forward(self, ids: torch.Tensor) -> Any:
        is_given = (ids == 5).sum(1) == 2
        if self.has_message:
            torch._check_tensor_all_with(ValueError, is_given, lambda: "two fives a row")
        else:
            torch._check_tensor_all(is_given)
        return self.words(ids).square().sum()


@pytest.mark.parametrize("has_message", [False, True])
def test_checks_of_what_is_given_are_made_in_each_run(has_message: bool, tmp_path: Path) -> None:
    def ids(*numbers: int) -> Any:
        return samba.from_torch_tensor(torch.tensor([numbers, numbers[::-1]]), name="ids")

    loaded = compare_step(Checked(has_message), (ids(5, 1, 5),), tmp_path, tolerance=1e-4)
    loaded.run(input_tensors=(ids(5, 5, 3),))
    with pytest.raises(SectionFailed, match=r"at test_finite_guards\.py:\d+.*torch\._check_tensor_all"):
        loaded.run(input_tensors=(ids(5, 1, 2),))
