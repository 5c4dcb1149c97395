"""Gradients flow where the program lets them: no_grad and its like, detach, ``.data``, custom functions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import TraceError, UnsupportedOperator
from sambaflow import samba
from support import shows
from support.programs import compare_step, load_model

pytestmark = shows("pytorch", "o0", "o1", "o3")

MODES = ["o0", "o1", "o3"]


class Scaled(nn.Module):
    """``w * x``, then what the test does with it and with ``w``."""

    def __init__(self, rest: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, -1.25, 2.0, 0.75]))
        self.register_buffer("mean", torch.zeros(4))
        self.rest = rest

    def forward(self, x: Any) -> Any:
        return self.rest(self, x * self.w)


def check_as_eager(rest: Callable[[Any, Any], Any], folder: Path, mode: str) -> None:
    """Outputs, gradients and buffers of two steps equal eager torch's."""
    inputs = (samba.from_torch_tensor(torch.randn(3, 4), name="x"),)
    compare_step(Scaled(rest), inputs, folder, steps=2, optim_level=mode)


def inside_no_grad(model: Any, y: Any) -> Any:
    with torch.no_grad():
        z = y * 2
    return y + z


def inside_inference_mode(model: Any, y: Any) -> Any:
    with torch.inference_mode():
        z = y * 2
    return y + z


def switched_off_and_on(model: Any, y: Any) -> Any:
    torch.set_grad_enabled(False)
    z = y * 2
    torch.set_grad_enabled(True)
    return y + z * y


def enabled_again_inside(model: Any, y: Any) -> Any:
    with torch.no_grad():
        z = y * 2
        with torch.enable_grad():
            u = y * 5 + z
        z = z * u
    return y * z + u


def given_back_inside_no_grad(model: Any, y: Any) -> Any:
    """torch gives the tensor itself, gradient included, where there is nothing to convert, copy or drop."""
    with torch.no_grad():
        a, b, c = y.float(), model.w.contiguous(), torch.nn.functional.dropout(y, 0.5, training=False)
        d, e = y.view(12), y.double()
    return a * b + c + d.view(3, 4) * e.float()


def given_back_by_other_functions(model: Any, y: Any) -> Any:
    """The same of functions that bring a tensor into a form which it has already."""
    with torch.no_grad():
        given = [
            y.sum_to_size(3, 4), y.real, y.conj(), y.conj_physical(), y.resolve_conj(), y.resolve_neg(),
            torch.atleast_1d(y), torch.atleast_2d(y), y.flatten(0, 0), model.w.flatten(), y.to_dense(),
        ]  # fmt: skip
        made = [y.flatten(), torch.atleast_3d(y)]
    return sum(one * (k + 1) for k, one in enumerate(given)) + made[0].view(3, 4) * y + made[1].view(3, 4)


@torch.no_grad()
def _doubled(y: Any) -> Any:
    return y * 2


def decorated(model: Any, y: Any) -> Any:
    return y * _doubled(y)


def parameter_read_without_gradient(model: Any, y: Any) -> Any:
    with torch.no_grad():
        scale = model.w.abs().mean()
    return y / scale


def overwritten_without_gradient(model: Any, y: Any) -> Any:
    y = y * 1
    with torch.no_grad():
        y.mul_(3).add_(1)
    return y + 2 * y


def part_overwritten_without_gradient(model: Any, y: Any) -> Any:
    y = y * 1
    with torch.no_grad():
        y[:, 1] = 7.0
        y[0].mul_(2)
    return y * 3


def overwritten_through_data(model: Any, y: Any) -> Any:
    y = y * 1
    y.data.clamp_(-0.5, 0.5)
    return y * 3


def overwritten_through_detach(model: Any, y: Any) -> Any:
    y = y * 1
    y.detach().mul_(3)
    return y * 2


def straight_through_by_detach(model: Any, y: Any) -> Any:
    return y + (y.round() - y).detach()


def moving_average(model: Any, y: Any) -> Any:
    with torch.no_grad():
        model.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
    return y - model.mean


def moving_average_through_data(model: Any, y: Any) -> Any:
    model.mean.data.mul_(0.9).add_(0.1 * y.mean(0).detach())
    return y - model.mean


def computed_into_what_is_detached(model: Any, y: Any) -> Any:
    y = y.detach() * 1
    shown = y.detach()
    shown.lerp_(model.w, 0.5)
    return y * model.w + shown


def turned_in_place_and_overwritten(model: Any, y: Any) -> Any:
    y = y * 1
    y.unsqueeze_(0)
    y.flatten()[0] = 7.0
    y.transpose_(1, 2).mul_(2)
    y.squeeze_()[1].add_(1)
    return y, y.t() * 3


REGIONS = [
    given_back_by_other_functions,
    inside_no_grad, inside_inference_mode, given_back_inside_no_grad, switched_off_and_on, enabled_again_inside,
    decorated, parameter_read_without_gradient, overwritten_without_gradient, part_overwritten_without_gradient,
    overwritten_through_data, overwritten_through_detach, straight_through_by_detach, moving_average,
    moving_average_through_data, computed_into_what_is_detached, turned_in_place_and_overwritten,
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rest", REGIONS)
def test_gradients_end_where_the_program_switches_them_off(rest: Any, mode: str, tmp_path: Path) -> None:
    if rest is inside_inference_mode:  # eager refuses to save an inference tensor; the gradient is that of no_grad
        rest = inside_no_grad if mode != "o1" else rest
    check_as_eager(rest, tmp_path, mode)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Any) -> Any:
        return y.round()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Any, strength: float) -> Any:
        ctx.strength = strength
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return -ctx.strength * gradient, None


class Gated(torch.autograd.Function):
    """Two tensors in, two out, saved tensors, an attribute, a mask that is written in place, and setup_context."""

    @staticmethod
    def forward(a: Any, b: Any, bias: float = 0.5) -> Any:
        return a.sigmoid() * b, (a > 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        a, b, ctx.bias = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(a, b, output[1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Any, _: Any) -> Any:
        a, b, mask = ctx.saved_tensors
        gate = a.sigmoid()
        wrong_on_purpose = gradient.clone()
        wrong_on_purpose[mask] = 0.25
        wrong_on_purpose.mul_(2)
        return wrong_on_purpose * b * gate * (1 - gate) + ctx.bias, gradient * gate * 3, None


class Overwriting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Any) -> Any:
        ctx.mark_dirty(y)
        return y.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 5


class ByAutograd(torch.autograd.Function):
    """Its backward asks autograd for the gradient of a part of forward, as recomputing layers do."""

    @staticmethod
    def forward(ctx: Any, y: Any) -> Any:
        ctx.save_for_backward(y)
        return y.tanh()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (y,) = ctx.saved_tensors
        with torch.enable_grad():
            again = y.detach().requires_grad_()
            (found,) = torch.autograd.grad(again.tanh() * 3, again, gradient)
        return found


class Broadcast(torch.autograd.Function):
    """Its gradient has more elements than the argument: autograd adds them up."""

    @staticmethod
    def forward(ctx: Any, y: Any, w: Any) -> Any:
        ctx.save_for_backward(y, w)
        return y * w

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        y, w = ctx.saved_tensors
        return gradient * w, gradient * y


kept_apply = Rounded.apply

FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "straight through": lambda model, y: kept_apply(y * 3) * y,
    "reversed": lambda model, y: Reversed.apply(y, 0.7) * 2 + y,
    "two outputs": lambda model, y: (lambda made: made[0] + y * made[1])(Gated.apply(y, y.exp())),
    "overwriting": lambda model, y: (lambda z: Overwriting.apply(z) + z)(y * 1),
    "by autograd": lambda model, y: ByAutograd.apply(y).square(),
    "broadcast": lambda model, y: Broadcast.apply(y, model.w),
    "of a parameter": lambda model, y: y * kept_apply(model.w * 3),
    "twice": lambda model, y: Reversed.apply(Reversed.apply(y, 0.5), 0.25),
    "inside no_grad": lambda model, y: y * _rounded_without(y),
    "its output detached": lambda model, y: y + kept_apply(y).detach(),
}


@torch.no_grad()
def _rounded_without(y: Any) -> Any:
    return kept_apply(y)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_custom_function_has_the_gradient_that_its_backward_gives(name: str, mode: str, tmp_path: Path) -> None:
    check_as_eager(FUNCTIONS[name], tmp_path, mode)


class WithoutBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Any) -> Any:
        return y.round()


class AsksWhichArrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Any) -> Any:
        ctx.set_materialize_grads(False)
        return y * 2, y * 3

    @staticmethod
    def backward(ctx: Any, one: Any, other: Any) -> Any:
        return one if other is None else other


@pytest.mark.parametrize(("function", "says"), [(WithoutBackward, "fails"), (AsksWhichArrive, "which gradients")])
def test_a_function_without_a_static_backward_infers_and_is_refused_in_training(
    function: Any, says: str, tmp_path: Path
) -> None:
    def rest(model: Any, y: Any) -> Any:
        made = function.apply(y)
        return made[0] if isinstance(made, tuple) else made

    model = Scaled(rest)
    tensor = torch.randn(3, 4)
    wanted = rest(model, tensor * model.w.detach())
    inputs = (samba.from_torch_tensor(tensor, name="x"),)
    loaded = load_model(model, inputs, tmp_path, precision="f32")
    torch.testing.assert_close(loaded.run()[0].torch_tensor(), wanted)
    samba.session.reset()
    with pytest.raises(UnsupportedOperator, match=says):
        load_model(Scaled(rest), inputs, tmp_path, lambda p: samba.optim.SGD(p, lr=0.1))


def gradient_in_forward(model: Any, y: Any) -> Any:
    z = y.detach().requires_grad_(True)
    (found,) = torch.autograd.grad((z**3).sum(), z, create_graph=True)
    return y * found


def force(model: Any, y: Any) -> Any:
    """A gradient with respect to an intermediate value, differentiated again: energies and forces."""
    (found,) = torch.autograd.grad((y**3 * model.w).sum(), y, create_graph=True)
    return found


def force_not_followed(model: Any, y: Any) -> Any:
    (found,) = torch.autograd.grad((y**3 * model.w).sum(), y)
    return found * y


def penalty(model: Any, y: Any) -> Any:
    (found,) = torch.autograd.grad(y.tanh().sum(), model.w, create_graph=True)
    return y + found.square()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rest", [gradient_in_forward, force, force_not_followed, penalty])
def test_forward_may_ask_autograd_for_gradients(rest: Any, mode: str, tmp_path: Path) -> None:
    check_as_eager(rest, tmp_path, mode)


def test_a_value_that_is_given_other_data_is_refused(tmp_path: Path) -> None:
    def rest(model: Any, y: Any) -> Any:
        y.data = y.data * 2
        return y

    inputs = (samba.randn(3, 4, name="x"),)
    with pytest.raises(TraceError, match=r"assigns \.data of .*in place under torch\.no_grad"):
        load_model(Scaled(rest), inputs, tmp_path)


class ViewOfInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return -grad


def test_what_a_custom_function_shows_of_its_input_is_refused_once_that_is_overwritten(tmp_path: Path) -> None:
    def rest(model: Any, y: Any) -> Any:
        made = y.detach() + 0
        seen = ViewOfInput.apply(made)
        made.mul_(2)
        return seen * y

    inputs = (samba.randn(3, 4, name="x"),)
    with pytest.raises(UnsupportedOperator, match="mul_ overwrites memory"):
        load_model(Scaled(rest), inputs, tmp_path)


def test_what_a_custom_function_gives_may_be_overwritten_through_a_view(tmp_path: Path) -> None:
    def rest(model: Any, y: Any) -> Any:
        made = Rounded.apply(y.detach())
        made.transpose(0, 1)[0] = 0.5
        return made * y

    check_as_eager(rest, tmp_path, "o3")
