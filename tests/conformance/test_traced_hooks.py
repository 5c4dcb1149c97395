"""Hooks on tensors, parameters and modules: forward ones run in the trace, gradient ones are compiled as written."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from rdukit.errors import RdukitError, UnsupportedOperator
from sambaflow import samba
from support import shows
from support.programs import compare_step, compile_model

pytestmark = shows("pytorch", "o0", "o1", "o3")


def sgd(parameters: Any) -> Any:
    return samba.optim.SGD(parameters, lr=0.0)


class Chain(nn.Module):
    """a → ``function`` → b."""

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)
        self.seen: list[Any] = []
        self._function = function

    def forward(self, x: torch.Tensor) -> Any:
        y = self.a(x)
        return self.b((y if self._function is None else self._function(self, y)).tanh())


def doubling(m: Any, y: torch.Tensor) -> torch.Tensor:
    y.register_hook(lambda gradient: gradient * 2)
    return y


def guarded(m: Any, y: torch.Tensor) -> torch.Tensor:
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    return y


def twice(m: Any, y: torch.Tensor) -> torch.Tensor:
    y.register_hook(lambda gradient: gradient + 1)
    y.register_hook(lambda gradient: gradient * 3)
    return y


def observed(m: Any, y: torch.Tensor) -> torch.Tensor:
    y.register_hook(lambda gradient: m.seen.append(gradient.shape))
    return y


def reading_values(m: Any, y: torch.Tensor) -> torch.Tensor:
    y.register_hook(lambda gradient: gradient * y.detach().sign() * m.b.weight.detach()[0])
    return y


def of_a_view(m: Any, y: torch.Tensor) -> torch.Tensor:
    half = y[:, :2]
    half.register_hook(lambda gradient: gradient * 5)
    return torch.cat([half, y[:, 2:]], 1)


def then_written(m: Any, y: torch.Tensor) -> torch.Tensor:
    z = y * 2
    z.register_hook(lambda gradient: gradient * 7)
    z[:, 0] = 0.5
    return z + 1


def without_gradients(m: Any, y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        z = y * 2
        assert not z.requires_grad
    assert y.requires_grad
    assert not y.detach().requires_grad
    assert not (y > 0).requires_grad
    return y + z


FUNCTIONS = [doubling, guarded, twice, observed, reading_values, of_a_view, then_written, without_gradients]


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_hook_on_a_tensor_changes_the_gradient_as_in_torch(function: Any, mode: str, tmp_path: Path) -> None:
    compare_step(Chain(function), samba.randn(5, 4, name="x"), tmp_path, optim_level=mode)


def hooked(register: Callable[[Chain], Any]) -> Callable[[], Chain]:
    def make() -> Chain:
        torch.manual_seed(1)
        net = Chain()
        register(net)
        return net

    return make


def scaled(module: Any, grad_input: Any, grad_output: Any) -> Any:
    return tuple(None if g is None else g * 2 for g in grad_input)


MODULE_HOOKS: dict[str, Callable[[], Chain]] = {
    "forward": hooked(lambda m: m.a.register_forward_hook(lambda module, args, made: made * 2 + args[0])),
    "forward-pre": hooked(lambda m: m.b.register_forward_pre_hook(lambda module, args: (args[0] - 1,))),
    "forward-root": hooked(lambda m: m.register_forward_hook(lambda module, args, made: made.sigmoid())),
    "forward-kwargs": hooked(
        lambda m: m.a.register_forward_hook(lambda module, args, kwargs, made: made * 3, with_kwargs=True)
    ),
    "full-backward": hooked(lambda m: m.b.register_full_backward_hook(scaled)),
    "full-backward-observer": hooked(lambda m: m.b.register_full_backward_hook(lambda module, gi, go: None)),
    "full-backward-pre": hooked(lambda m: m.b.register_full_backward_pre_hook(lambda module, go: (go[0] * 2,))),
    "full-backward-both": hooked(
        lambda m: (
            m.b.register_full_backward_hook(scaled),
            m.b.register_full_backward_pre_hook(lambda _, go: (go[0] + 1,)),
        )
    ),
    "parameter": hooked(lambda m: m.a.weight.register_hook(lambda gradient: gradient * torch.ones(4, 4).triu())),
    "two-on-a-parameter": hooked(
        lambda m: (m.b.bias.register_hook(lambda g: g + 1), m.b.bias.register_hook(lambda g: g * 2))
    ),
}


@pytest.mark.parametrize("mode", ["o0", "o3"])
@pytest.mark.parametrize("case", MODULE_HOOKS)
def test_a_hook_on_a_module_or_parameter_acts_as_in_torch(case: str, mode: str, tmp_path: Path) -> None:
    net, reference = MODULE_HOOKS[case](), MODULE_HOOKS[case]()
    compare_step(net, samba.randn(5, 4, name="x"), tmp_path, optim_level=mode, reference=reference)


def test_a_hook_is_compiled_in_bf16_too(tmp_path: Path) -> None:
    compare_step(Chain(doubling), samba.randn(5, 4, name="x"), tmp_path, precision="bf16", tolerance=6e-2)


class Late(Chain):
    def forward(self, x: torch.Tensor) -> Any:
        y = self.a(x)
        z = self.b(y)
        y.register_hook(lambda gradient: gradient * 2)
        return z


class Removing(Chain):
    def forward(self, x: torch.Tensor) -> Any:
        y = self.a(x)
        handle: Any = y.register_hook(lambda gradient: gradient * 2)
        handle.remove()
        return self.b(y)


class Retaining(Chain):
    def forward(self, x: torch.Tensor) -> Any:
        self.kept = self.a(x)
        self.kept.retain_grad()
        return self.b(self.kept)


def looks_at_outputs() -> nn.Module:
    net = Chain()
    net.b.register_full_backward_hook(lambda module, gi, go: (gi[0] * go[0].sum(),))
    return net


def deprecated() -> nn.Module:
    net = Chain()
    net.b.register_backward_hook(lambda module, gi, go: None)
    return net


def after_accumulation() -> nn.Module:
    net = Chain()
    net.b.weight.register_post_accumulate_grad_hook(lambda p: None)
    return net


def looks_at_a_value(m: Any, y: torch.Tensor) -> torch.Tensor:
    y.register_hook(lambda gradient: gradient if gradient.sum() > 0 else -gradient)
    return y


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Late, r"hook '<lambda>' .*has already read; register it before"),
        (Removing, r"registers hook '<lambda>' and removes it again"),
        (Retaining, r"retain_grad\(\) .*return the tensor from forward"),
        (looks_at_outputs, r"reads grad_output.*use grad_input, or a full backward pre-hook"),
        (deprecated, r"module 'b' has a hook of register_backward_hook.*use register_full_backward_hook"),
        (after_accumulation, r"parameter 'b\.weight'.*register_post_accumulate_grad_hook.*use register_hook"),
        (lambda: Chain(looks_at_a_value), r"hook '<lambda>'.* fails"),
    ],
)
def test_a_hook_that_cannot_be_compiled_is_refused_with_what_to_do(
    make: Callable[[], nn.Module], text: str, tmp_path: Path
) -> None:
    net = make()
    with pytest.raises(RdukitError, match=text):
        compile_model(net, samba.randn(5, 4, name="x"), sgd(samba.from_torch_model_(net).parameters()), tmp_path)


def test_a_hooked_parameter_cannot_be_overwritten_unseen(tmp_path: Path) -> None:
    class Overwriting(Chain):
        def forward(self, x: torch.Tensor) -> Any:
            with torch.no_grad():
                self.a.weight.mul_(0.5)
            return super().forward(x)

    net = Overwriting()
    net.a.weight.register_hook(lambda gradient: gradient)
    with pytest.raises(UnsupportedOperator, match="overwrites 'overwriting__a__weight'"):
        compile_model(net, samba.randn(5, 4, name="x"), sgd(samba.from_torch_model_(net).parameters()), tmp_path)


CHECKPOINTED: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "plain": lambda m, y: checkpoint(m.c, y, use_reentrant=False),
    "reentrant": lambda m, y: checkpoint(m.c, y, use_reentrant=True),
    "sequential": lambda m, y: checkpoint_sequential(nn.Sequential(m.c, nn.ReLU()), 2, y, use_reentrant=False),
}


@pytest.mark.parametrize("mode", ["o0", "o3"])
@pytest.mark.parametrize("case", CHECKPOINTED)
def test_activation_checkpointing_changes_no_number(case: str, mode: str, tmp_path: Path) -> None:
    net = Chain(CHECKPOINTED[case])
    net.c = nn.Linear(4, 4)
    compare_step(net, samba.randn(5, 4, name="x"), tmp_path, optim_level=mode, reference=copy.deepcopy(net))


def test_after_a_trace_hooks_are_torchs_own_again(tmp_path: Path) -> None:
    compile_model(Chain(doubling), samba.randn(5, 4, name="x"), None, tmp_path)
    y = torch.ones(2, requires_grad=True)
    y.register_hook(lambda gradient: gradient * 2)
    y.sum().backward()  # type: ignore[no-untyped-call]
    assert y.grad is not None
    assert y.grad.tolist() == [2, 2]
