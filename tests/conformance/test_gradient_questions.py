"""What forward asks autograd while it is traced, and gradients of zeros: answers are those of eager torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import TraceError, UnsupportedOperator
from sambaflow import samba
from sambaflow.samba.sambatensor import unwrap
from support import shows
from support.programs import compare_step, compile_model

pytestmark = shows("pytorch", "o0", "o3")

Answers = list[tuple[bool, bool, bool]]


def ask(*tensors: Any) -> Answers:
    return [(t.requires_grad, t.is_leaf, t.grad_fn is not None) for t in tensors]


def parts_written(s: Any, x: Any) -> Answers:
    y, o = s.lin(x), torch.zeros(4, 6)
    before = ask(o)
    o[0] = y[0]
    return before + ask(o, o[1], y, x, s.lin.weight, s.lin.weight.t())


def views_taken_before_the_write(s: Any, x: Any) -> Answers:
    y, o = s.lin(x), torch.zeros(4, 6)
    view, apart = o[2], o.detach()
    o[1].add_(y[1])
    return ask(o, view, apart, torch.zeros_like(y), y.new_ones(3), y > 0, y.detach(), torch.ones(3))


def written_while_gradients_are_off(s: Any, x: Any) -> Answers:
    y = s.lin(x) * 1
    with torch.no_grad():
        y.zero_()
        made, view, copied = y * 2, y[0], y.t().reshape(-1)
    return ask(y, made, view, copied, y + 1, view * 2)


def several_results(s: Any, x: Any) -> Answers:
    y = s.lin(x) * 1
    apart = y * 1
    apart.detach_()
    largest, where = y.max(1)
    return ask(*y.chunk(2, 1), apart, largest, where, s.m * 1, y.to(torch.float32), y.contiguous(), y.view(-1))


def a_write_that_brings_a_gradient(s: Any, x: Any) -> Answers:
    c = x * 1
    earlier = c * 2
    c.add_(s.lin(x))
    return ask(c, earlier, x, s.m)


class Asking(nn.Module):
    """lin, after ``question`` was asked; keeps the answers."""

    def __init__(self, question: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 6)
        self.register_buffer("m", torch.ones(6))
        self.question = question
        self.answers: list[Any] = []

    def forward(self, x: Any) -> Any:
        self.answers = [self.question(self, x)]
        return self.lin(x)


@pytest.mark.parametrize(
    "question",
    [
        parts_written, views_taken_before_the_write, written_while_gradients_are_off, several_results,
        a_write_that_brings_a_gradient,
    ],
)  # fmt: skip
def test_requires_grad_is_leaf_and_grad_fn_answer_as_in_eager_torch(
    question: Callable[[Any, Any], Answers], tmp_path: Path
) -> None:
    model, eager = Asking(question), Asking(question)
    eager(torch.randn(4, 6))
    compile_model(model, samba.randn(4, 6, name="x"), samba.optim.SGD(model.parameters(), lr=0.1), tmp_path)
    assert model.answers == eager.answers


def test_addresses_tell_tensors_apart_as_in_eager_torch(tmp_path: Path) -> None:
    def question(s: Any, x: Any) -> list[bool]:
        y = s.lin(x)
        pairs = [(y, y.view(-1)), (y, y[1]), (y, y * 1), (s.lin.weight, s.lin.weight.t()), (y[1], y[1:])]
        return [a.data_ptr() == b.data_ptr() for a, b in pairs]

    model, eager = Asking(question), Asking(question)
    eager(torch.randn(4, 6))
    compile_model(model, samba.randn(4, 6, name="x"), None, tmp_path)
    assert model.answers == eager.answers


@pytest.mark.parametrize(
    ("question", "error", "text"),
    [
        (lambda s, x: (x * 2).register_hook(lambda g: g), UnsupportedOperator, "requires no gradient; torch refuses"),
        (lambda s, x: s.lin(x).grad_fn.register_hook(print), UnsupportedOperator, r"reads grad_fn\.register_hook"),
        (lambda s, x: s.lin(x).grad_fn.name(), UnsupportedOperator, r"reads grad_fn\.name.*compare grad_fn with"),
        (
            lambda s, x: torch.autograd.graph.register_multi_grad_hook((s.lin(x),), print),
            UnsupportedOperator, "register_multi_grad_hook in forward cannot be compiled",
        ),
        (lambda s, x: torch.ones(4, 6).apply_(lambda v: v * 2), UnsupportedOperator, "Python function for each"),
        (lambda s, x: torch.utils.dlpack.to_dlpack(torch.ones(4)), UnsupportedOperator, "uses a tensor's memory"),
        (lambda s, x: torch.ones(4).untyped_storage().resize_(0), UnsupportedOperator, "memory .* or resizes it"),
        (lambda s, x: x.map_(x, lambda v, w: v * w), UnsupportedOperator, "Python function for each element"),
    ],
)  # fmt: skip
def test_what_has_no_answer_in_a_trace_is_refused_with_what_would_be_legal(
    question: Any, error: type[Exception], text: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=text):
        compile_model(Asking(question), samba.randn(4, 6, name="x"), None, tmp_path)


def dual(s: Any, x: Any) -> Any:
    import torch.autograd.forward_ad as forward_ad

    with forward_ad.dual_level():
        return forward_ad.unpack_dual(forward_ad.make_dual(s.lin(x), unwrap(x)) * 2).tangent


def scanned(s: Any, x: Any) -> Any:
    from torch._higher_order_ops import scan

    return scan(lambda c, v: (c + v, c * v), torch.zeros(6), s.lin(x))[1]


class Calling(nn.Module):
    """``function(module, x)`` beside lin."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 6)
        self._function = function

    def forward(self, x: Any) -> Any:
        return self._function(self, x)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, in make_dual
@pytest.mark.parametrize(
    ("function", "error", "text"),
    [(dual, UnsupportedOperator, r"use torch\.func\.jvp"), (scanned, TraceError, "torch's scan.*Python loop")],
)
def test_differentiation_forwards_and_scans_are_refused_with_what_would_be_legal(
    function: Callable[[Any, Any], Any], error: type[Exception], text: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=text):
        compile_model(Calling(function), samba.randn(4, 6, name="x"), None, tmp_path)


def copied_over(s: Any, x: Any) -> Any:
    y = s.lin(x)
    y.copy_(x[:1])
    return y * 2


def cleared(s: Any, x: Any) -> Any:
    y, z = s.lin(x), s.lin(x).sum()
    y.zero_()
    z.zero_()
    return y * 2, z + x.sum()


def copied_while_gradients_are_off(s: Any, x: Any) -> Any:
    y = s.lin(x)
    with torch.no_grad():
        y.copy_(x[:1])
    return y * 2


def without_parameters(s: Any, x: Any) -> Any:
    return x * 2


@pytest.mark.parametrize("mode", ["o0", "o3"])
@pytest.mark.parametrize("function", [copied_over, cleared, copied_while_gradients_are_off, without_parameters])
def test_gradients_are_zeros_or_none_where_torchs_are(
    function: Callable[[Any, Any], Any], mode: str, tmp_path: Path
) -> None:
    compare_step(Calling(function), samba.randn(4, 6, name="x"), tmp_path, optim_level=mode)


class GrowsFromNothing(nn.Module):
    """Keeps what it computes behind an empty tensor, as caches of keys and values start."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = torch.tensor([], dtype=x.dtype, device=x.device)
        return torch.cat([kept, self.layer(x)], dim=-2) * 2


def test_an_empty_tensor_that_forward_makes_is_no_access_to_memory(tmp_path: Path) -> None:
    compare_step(GrowsFromNothing(), (samba.randn(3, 4, name="x"),), tmp_path)
