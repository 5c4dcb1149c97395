"""Inputs that forward overwrites, and parameters: of inputs a copy, of ``Embedding(max_norm=…)`` rows it looks up."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rdukit.errors import UnsupportedOperator
from sambaflow import samba
from support import shows
from support.programs import compare_step, compile_model, load_model

pytestmark = shows("pytorch", "o0", "o1", "o3")


def through_type_as(y: torch.Tensor) -> torch.Tensor:
    c = (y * 2).contiguous().type_as(y)
    c[1:] += c[0]
    return c


def through_a_part(y: torch.Tensor) -> torch.Tensor:
    c = y * 2
    rows, part, turned = c[1:], c.narrow(1, 1, 2), c.t().unsqueeze(0)
    part.mul_(y[:, :1])
    rows.add_(turned[0, 2, 3].exp())
    return part.sum() + rows[2:] * turned[..., 1:3].amax()


def through_views_of_views(y: torch.Tensor) -> torch.Tensor:
    c = y * 2
    rows = c.view(10, 2)[2:8].view(3, 4)
    last = rows[2]
    c.mul_(3)
    rows[0].sin_()
    last.copy_(rows[0] * 2)
    return torch.cat([rows[1], last, c.flatten()])


def through_as_strided(y: torch.Tensor) -> torch.Tensor:
    c = y * 2
    c.as_strided((2, 2), (3, 2), 1).exp_()
    return c


class Writing(nn.Module):
    """lin → ``function``."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self._function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._function(self.lin(x))


@pytest.mark.parametrize("mode", ["o0", "o3"])
@pytest.mark.parametrize("function", [through_type_as, through_a_part, through_views_of_views, through_as_strided])
def test_what_a_view_overwrites_is_seen_through_what_it_is_a_view_of(
    function: Callable[[torch.Tensor], torch.Tensor], mode: str, tmp_path: Path
) -> None:
    compare_step(Writing(function), samba.randn(5, 4, name="x"), tmp_path, optim_level=mode)


@pytest.mark.parametrize("mode", ["o0", "o3"])
def test_a_write_into_one_row_of_an_expanded_tensor_which_is_in_all_rows_is_refused(mode: str, tmp_path: Path) -> None:
    def write(y: torch.Tensor) -> torch.Tensor:
        rows = (y[:1] * 2).expand(3, 4)
        rows.narrow(0, 0, 1).copy_(y[1:2])
        return rows

    with pytest.raises(UnsupportedOperator, match="copy_ overwrites memory shared with"):
        compile_model(Writing(write), samba.randn(5, 4, name="x"), None, tmp_path, optim_level=mode)


def test_parts_show_what_was_written_into_the_whole(tmp_path: Path) -> None:
    """Torch forbids it where gradients are computed."""

    def write(y: torch.Tensor) -> torch.Tensor:
        c = y * 2
        first, second = c.split(2, 1)
        rows = c.unbind(0)
        c.mul_(3)
        first.add_(1)
        rows[3].zero_()
        return second + first.sum() + rows[0].sum()

    model, x = Writing(write), samba.randn(5, 4, name="x")
    (made,) = load_model(model, x, tmp_path, precision="f32").run()
    with torch.no_grad():
        torch.testing.assert_close(made.data, samba.to_torch(model(x.data)))


def sgd(parameters: Any) -> Any:
    return samba.optim.SGD(parameters, lr=0.0)


class Overwriting(nn.Module):
    def __init__(self, write: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 3)
        self._write = write

    def forward(self, x: torch.Tensor) -> Any:
        before = x.sum(1)
        self._write(x)
        return before, self.lin(x).tanh()


def assigned(x: Any) -> None:
    x[0] = 2.0


def through_a_view(x: Any) -> None:
    x[:, 1:3].mul_(-1)


WRITES: dict[str, Callable[[Any], Any]] = {
    "add": lambda x: x.add_(1.0), "relu": lambda x: F.relu(x, inplace=True), "assign": assigned, "view": through_a_view,
    "copy": lambda x: x.copy_(x.flip(0)), "clamp": lambda x: x.clamp_(-0.1, 0.1).mul_(3), "zero": lambda x: x.zero_(),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
@pytest.mark.parametrize("case", WRITES)
def test_a_copy_of_the_input_is_overwritten_in_every_run(
    case: str, mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x = samba.randn(5, 4, name="x")
    before = x.data.clone()
    loaded = compare_step(Overwriting(WRITES[case]), x, tmp_path, optim_level=mode)
    assert torch.equal(x.data, before), "the program's tensor keeps its values"
    first = [output.data for output in loaded.run()]
    assert all(torch.equal(a, b.data) for a, b in zip(first, loaded.run(), strict=True)), "so each run gives the same"
    assert "overwrites input 'x': the device overwrites a copy" in caplog.text


def test_an_input_that_requires_a_gradient_cannot_be_overwritten_as_in_torch(tmp_path: Path) -> None:
    net = Overwriting(WRITES["add"])
    with pytest.raises(UnsupportedOperator, match=r"add_ overwrites input 'x', which requires a gradient"):
        compile_model(net, samba.randn(5, 4, name="x").requires_grad_(), None, tmp_path)


def test_a_parameter_that_forward_overwrites_is_refused_with_what_to_do(tmp_path: Path) -> None:
    class Clipping(Overwriting):
        def forward(self, x: torch.Tensor) -> Any:
            with torch.no_grad():
                self.lin.weight.clamp_(-0.1, 0.1)
            return self.lin(x)

    with pytest.raises(UnsupportedOperator, match=r"overwrites 'clipping__lin__weight'.*before session\.run"):
        compile_model(Clipping(WRITES["add"]), samba.randn(5, 4, name="x"), None, tmp_path)


class Embedded(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 4, **options)
        self.lin = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.lin(self.words(x)).square().sum()


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
@pytest.mark.parametrize("norm", [2.0, 1.0])
def test_embedding_with_max_norm_shortens_the_rows_that_it_looks_up(norm: float, mode: str, tmp_path: Path) -> None:
    net = Embedded(max_norm=0.9, norm_type=norm)
    reference = copy.deepcopy(net)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05)
    batches = [samba.randint(12, (3, 2), name="x") for _ in range(4)]
    loaded = load_model(
        net, batches[0], tmp_path, lambda p: samba.optim.SGD(p, lr=0.05), optim_level=mode, precision="f32"
    )
    for batch in batches:
        (loss,) = loaded.run(input_tensors=batch)
        optimizer.zero_grad()
        gold = reference(batch.data)
        gold.backward()
        optimizer.step()
        assert torch.allclose(loss.data, gold, rtol=1e-5)
        assert torch.allclose(net.words.weight.sn_grad, reference.words.weight.grad, atol=1e-5)
    samba.session.to_cpu(net)
    assert torch.allclose(net.words.weight, reference.words.weight, atol=1e-6)
    assert net.words.weight.norm(p=norm, dim=1).max() > 0.9, "rows that no batch named keep their length"


@pytest.mark.parametrize("mode", ["o0", "o3"])
def test_in_bf16_rows_that_are_not_looked_up_keep_every_bit(mode: str, tmp_path: Path) -> None:
    net = Embedded(max_norm=0.5)
    before = net.words.weight.detach().clone()
    x = samba.from_torch_tensor(torch.tensor([[1, 2], [2, 3]]), name="x")
    loaded = load_model(net, x, tmp_path, sgd, optim_level=mode)
    loaded.run()
    samba.session.to_cpu(net)
    untouched = [row for row in range(12) if row not in {1, 2, 3}]
    assert torch.equal(net.words.weight[untouched], before[untouched])
    assert torch.allclose(net.words.weight[[1, 2, 3]].norm(dim=1), torch.full((3,), 0.5), atol=1e-5)
