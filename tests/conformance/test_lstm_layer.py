"""LSTMs by our own operator, in libraries and generated code, against torch in double precision; graphs stay small."""

import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from rdukit.pef.kernel import KernelGraph
from rdukit_compiler.backend.kernel_graph import kernel_from_fx
from rdukit_compiler.backend.native import build_natives
from rdukit_compiler.operators.layers import lstm
from rdukit_compiler.torch_private import trace_aten, without_onednn
from rdukit_runtime.engine.native import load_native
from rdukit_runtime.engine.portable import build_portable
from support import shows
from support.native_libraries import chosen_values
from support.tiers import others_long

pytestmark = shows("engine", "native", "portable")

Tensors = Sequence[torch.Tensor]
#: Relative to the largest value of each result, in f32: some steps, each a rounding or two.
_TOLERANCE = 5e-6
#: bf16 rounds by 2^-9, parameters and what leaves a layer.
_NARROW_TOLERANCE = 2**-6


@dataclass(frozen=True)
class Case:
    """Sizes and settings of ``nn.LSTM``; results are y, h, c and the gradients of x, h0, c0 and all parameters."""

    steps: int
    batch: int
    channels: int
    width: int
    layers: int = 1
    is_bidirectional: bool = False
    is_batch_first: bool = False
    has_biases: bool = True
    has_gradients: bool = True

    def inputs(self) -> list[torch.Tensor]:
        """x, h0, c0, parameters, then gradients of y, h and c."""
        torch.manual_seed(self.width)
        states = (self.layers * (1 + self.is_bidirectional), self.batch, self.width)
        order = (self.batch, self.steps) if self.is_batch_first else (self.steps, self.batch)
        made = (*order, self.width * (1 + self.is_bidirectional))
        shapes = ((*order, self.channels), states, states)
        differentiable = [*map(torch.randn, shapes), *(p.detach().clone() for p in self.module().parameters())]
        return [*(t.requires_grad_(self.has_gradients) for t in differentiable), *map(torch.randn, (made, *shapes[1:]))]

    def module(self) -> nn.LSTM:
        return nn.LSTM(
            self.channels, self.width, self.layers, self.has_biases, self.is_batch_first,
            bidirectional=self.is_bidirectional,
        )  # fmt: skip

    def run(self, function: Callable[..., Tensors], *inputs: torch.Tensor) -> list[torch.Tensor]:
        x, h, c, *params = inputs[:-3]
        made = function(
            x, (h, c), params, self.has_biases, self.layers, 0.0, True, self.is_bidirectional, self.is_batch_first
        )
        given = [] if not self.has_gradients else torch.autograd.grad(made, [x, h, c, *params], inputs[-3:])
        return [tensor.contiguous() for tensor in (*made, *given)]


_CASES = {
    "one step": Case(1, 3, 4, 5),
    "one sample, one unit": Case(7, 1, 3, 1),
    "a vector and one": Case(5, 13, 8, 17, is_batch_first=True),
    "two layers": Case(6, 32, 8, 64, layers=2),
    "both directions, two layers": Case(4, 3, 2, 33, layers=2, is_bidirectional=True, is_batch_first=True),
    "no biases": Case(3, 7, 5, 24, has_biases=False),
    "wide": Case(2, 9, 3, 300),
    "no gradients": Case(5, 4, 3, 20, is_bidirectional=True, has_gradients=False),
}
#: A partial vector, and everything that an LSTM can have.
_SHORT = {"a vector and one", "both directions, two layers", "no gradients"}


def _torch_lstm(*args: object) -> Tensors:
    made: Tensors = torch.ops.aten.lstm.input(*args)
    return made


def _exact(case: Case, inputs: Tensors) -> list[torch.Tensor]:
    wide = [tensor.detach().double().requires_grad_(tensor.requires_grad) for tensor in inputs]
    return [tensor.detach() for tensor in case.run(_torch_lstm, *wide)]


def _kernel(case: Case, inputs: Tensors) -> KernelGraph:
    with without_onednn():
        traced = trace_aten(lambda *given: case.run(lstm, *given), inputs)
    traced.graph.eliminate_dead_code()
    return kernel_from_fx(traced.graph)


def _check(made: Tensors, exact: Tensors, tolerance: float = _TOLERANCE) -> None:
    assert [m.shape for m in made] == [e.shape for e in exact]
    assert all(m.is_contiguous() for m in made)
    for number, (m, e) in enumerate(zip(made, exact, strict=True)):
        error = (m.double() - e).abs().max() / e.abs().max().clamp_min(1e-3)
        assert error <= tolerance, f"result {number} is off by {error:.1e}"


@pytest.mark.parametrize("name", _CASES)
def test_generated_code_gives_torchs_numbers(name: str) -> None:
    case, inputs = _CASES[name], _CASES[name].inputs()
    made = build_portable(_kernel(case, inputs))([tensor.detach() for tensor in inputs], {})
    _check(made, _exact(case, inputs))


@pytest.fixture(scope="module")
def libraries(request: pytest.FixtureRequest) -> dict[str, bytes]:
    wanted = {name for name, _ in chosen_values(request, "name", "threads")} | {"a vector and one"}
    kernels = [_kernel(case, case.inputs()) for name, case in _CASES.items() if name in wanted]
    failed: dict[str, str] = {}

    def on_built(digest: str, error: str | None) -> None:
        if error is not None:
            failed[digest] = error

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # inductor's own, as it is imported
        made = build_natives({kernel.digest(): kernel for kernel in kernels}, on_built)
    assert not failed
    return made


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", others_long(_CASES, _SHORT))
@pytest.mark.parametrize("threads", others_long([1, 2], {2}))
def test_libraries_give_torchs_numbers(libraries: dict[str, bytes], name: str, threads: int) -> None:
    case, inputs = _CASES[name], _CASES[name].inputs()
    kernel, exact = _kernel(case, inputs), _exact(case, inputs)
    library = load_native(kernel.digest(), libraries[kernel.digest()], len(inputs), len(exact))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        made = library([tensor.detach() for tensor in inputs], {})
    finally:
        torch.set_num_threads(before)
    _check(made, exact)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("value", [1e4, -1e4, float("inf"), float("nan")])
def test_gates_take_any_numbers(libraries: dict[str, bytes], value: float) -> None:
    """Gates saturate; a sample's numbers change no other's."""
    case = _CASES["a vector and one"]
    inputs = case.inputs()
    kernel = _kernel(case, inputs)
    inputs[0].data[2, 1, 0] = value
    exact = _exact(case, inputs)
    library = load_native(kernel.digest(), libraries[kernel.digest()], len(inputs), len(exact))
    y = library([tensor.detach() for tensor in inputs], {})[0]
    assert torch.allclose(y.double(), exact[0], atol=1e-6, equal_nan=True)


def test_bf16_is_rounded_where_it_leaves_a_layer() -> None:
    case = _CASES["two layers"]
    inputs = [tensor.detach().bfloat16().requires_grad_(tensor.requires_grad) for tensor in case.inputs()]
    made = build_portable(_kernel(case, inputs))([tensor.detach() for tensor in inputs], {})
    assert {tensor.dtype for tensor in made} == {torch.bfloat16}
    _check(made, _exact(case, inputs), _NARROW_TOLERANCE)


def test_a_graph_does_not_grow_with_the_sequence() -> None:
    short, long = Case(2, 3, 4, 5, is_batch_first=True), Case(200, 3, 4, 5, is_batch_first=True)
    assert len(_kernel(short, short.inputs()).nodes) == len(_kernel(long, long.inputs()).nodes)


def test_projected_states_stay_torchs() -> None:
    module = nn.LSTM(4, 6, proj_size=3)
    x, h, c = torch.randn(2, 5, 4), torch.randn(1, 5, 3), torch.randn(1, 5, 6)
    made = lstm(x, (h, c), list(module.parameters()), True, 1, 0.0, False, False, False)
    expected = _torch_lstm(x, (h, c), list(module.parameters()), True, 1, 0.0, False, False, False)
    assert all(torch.equal(m, e) for m, e in zip(made, expected, strict=True))
