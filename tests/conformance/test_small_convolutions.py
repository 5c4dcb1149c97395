"""Convolutions of small samples and their gradients in native code against torch in double precision.

The kernels of the cases that run are built in one go (one reading of torch's headers).
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from rdukit_compiler.backend.choose_small_convolutions import choose_small_convolutions
from rdukit_compiler.torch_private import trace_aten, without_onednn
from rdukit_runtime.engine.native import NativeKernel
from support import shows
from support.native_libraries import chosen_values
from support.native_sections import TracedSection, build_traced
from support.tiers import others_long

pytestmark = [shows("engine", "native"), pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")]

Tensors = Sequence[torch.Tensor]
#: Relative to the largest value of the result, in f32: sums of up to some thousand terms, in another order.
_TOLERANCE = 1e-5
_backward = torch.ops.aten.convolution_backward.default


@dataclass(frozen=True)
class Layer:
    """Shapes of x and of the weight, one or two axes; padding and dilation by axis."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def inputs(self) -> list[torch.Tensor]:
        """x, w, bias, and a gradient of the result."""
        x, w, bias = _numbers(*self.x), _numbers(*self.w), _numbers(self.w[0])
        return [x, w, bias, _numbers(*self.forward(x, w, bias)[0].shape) + 0.5]

    def forward(self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor]:
        convolve = F.conv1d if x.dim() == 3 else F.conv2d
        return (convolve(x, w, bias, padding=self.padding, dilation=self.dilation),)

    def backward(
        self, dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, wanted: tuple[bool, bool, bool] = (True, True, True)
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        axes = len(self.padding)
        made: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _backward(
            dy, x, w, [w.shape[0]], [1] * axes, list(self.padding), list(self.dilation), False, [0] * axes, 1, wanted
        )
        return made


_LAYERS = {
    "a line": Layer((32, 8, 96), (64, 8, 3), (1,), (1,)),
    "a dilated line": Layer((5, 64, 37), (23, 64, 3), (4,), (4,)),
    "a line without padding": Layer((9, 3, 50), (7, 3, 4), (0,), (3,)),
    "a line of one tap": Layer((4, 5, 41), (1, 5, 1), (0,), (1,)),
    "an image of one channel": Layer((6, 1, 28, 28), (6, 1, 5, 5), (2, 2), (1, 1)),
    "channels and filters": Layer((3, 6, 14, 14), (16, 6, 5, 5), (0, 0), (1, 1)),
    "odd sizes": Layer((2, 7, 11, 13), (19, 7, 3, 2), (1, 0), (1, 1)),
    "dilated by axis": Layer((3, 4, 17, 21), (8, 4, 3, 3), (2, 1), (2, 3)),
}


def _numbers(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator)


def _all_of(layer: Layer) -> Callable[..., Tensors]:
    """The layer rectified, unrectified without a bias, and its three gradients."""

    def run(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, dy: torch.Tensor) -> Tensors:
        rectified = layer.forward(x, w, bias)[0].relu()
        return (rectified, layer.forward(x, w, None)[0], *layer.backward(dy, x, w))

    return run


_FIRST = Layer((6, 3, 30), (10, 3, 3), (1,), (1,))
_SECOND = Layer((6, 10, 30), (12, 10, 3), (2,), (2,))


def _two_layers(x: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> Tensors:
    """Gradients of two layers with a ReLU between them, of which ``hidden`` is the result; none of the first input."""
    passed, dw, db = _SECOND.backward(dy, hidden, w)
    gradient = torch.ops.aten.threshold_backward(passed, hidden, 0)
    _, dv, dc = _FIRST.backward(gradient, x, v, (False, True, True))
    return dw, db, dv, dc


def _two_inputs() -> list[torch.Tensor]:
    hidden = _numbers(6, 10, 30).relu()
    return [_numbers(6, 3, 30), _numbers(10, 3, 3), hidden, _numbers(12, 10, 3), _numbers(6, 12, 30) + 0.1]


def _turned(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> Tensors:
    """With every tensor in another order in memory."""
    layer = _LAYERS["odd sizes"]
    return (layer.forward(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), None)[0],
            *layer.backward(dy.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)))  # fmt: skip


def _cases() -> dict[str, tuple[Callable[..., Tensors], list[torch.Tensor]]]:
    cases: dict[str, tuple[Callable[..., Tensors], list[torch.Tensor]]] = {
        name: (_all_of(layer), layer.inputs()) for name, layer in _LAYERS.items()
    }
    cases["two layers"] = (_two_layers, _two_inputs())
    last = [_numbers(2, 11, 13, 7), _numbers(19, 3, 2, 7), _numbers(2, 11, 12, 19)]
    cases["channels last"] = (_turned, last)
    return cases


_CASES = _cases()
#: A line and an image, several layers, and another order in memory.
_SHORT = {"a dilated line", "odd sizes", "two layers", "channels last"}


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> dict[str, NativeKernel]:
    sections = {}
    for (name,) in sorted(chosen_values(request, "name") | {("a line",)}):
        function, inputs = _CASES[name]
        with without_onednn():
            module = trace_aten(function, inputs)
        assert choose_small_convolutions(module), name
        assert "convolution_backward" not in str(module.graph).replace("small_convolution_backward", "")
        sections[name] = TracedSection(module, inputs)
    return build_traced(sections)


@pytest.mark.parametrize("name", others_long(_CASES, _SHORT))
@pytest.mark.parametrize("threads", others_long([1, 2], {2}))
def test_convolutions_and_gradients_agree_with_double_precision(
    kernels: dict[str, NativeKernel], name: str, threads: int
) -> None:
    function, inputs = _CASES[name]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        made = kernels[name](inputs, {})
    finally:
        torch.set_num_threads(before)
    exact = function(*[tensor.double() for tensor in inputs])
    assert [m.shape for m in made] == [e.shape for e in exact]
    errors = [((m.double() - e).abs().max() / e.abs().max()).item() for m, e in zip(made, exact, strict=True)]
    assert max(errors) <= _TOLERANCE, errors


def test_what_is_not_a_number_stays_so_behind_a_relu(kernels: dict[str, NativeKernel]) -> None:
    function, inputs = _CASES["a line"]
    x = inputs[0].clone()
    x[3, 2, 50] = float("nan")
    made, exact = kernels["a line"]([x, *inputs[1:]], {})[0], function(x, *inputs[1:])[0]
    assert torch.equal(made.isnan(), exact.isnan()) and made.isnan().any()


def _strided(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    return (F.conv1d(x, w, stride=2),)


def _grouped(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    return (F.conv1d(x, w[:, :4], groups=2),)


def _transposed(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    return (F.conv_transpose1d(x, w.transpose(0, 1)),)


def _padded_far(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    axis = Layer(tuple(x.shape), tuple(w.shape), (7,), (1,))
    return axis.backward(torch.ones_like(axis.forward(x, w, None)[0]), x, w)


def _mixed(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    return (F.conv1d(x, w), F.conv1d(x, w, stride=2))


@pytest.mark.parametrize("function", [_strided, _grouped, _transposed, _padded_far, _mixed])
@pytest.mark.parametrize("dtype", [torch.float32])
def test_a_kernel_with_a_convolution_of_another_kind_is_left_alone(
    function: Callable[..., Tensors], dtype: torch.dtype
) -> None:
    inputs = [_numbers(16, 8, 40).to(dtype), _numbers(12, 8, 3).to(dtype)]
    with without_onednn():
        module = trace_aten(function, inputs)
    before = module.print_readable(print_output=False)
    assert not choose_small_convolutions(module)
    assert module.print_readable(print_output=False) == before


def test_a_kernel_in_bf16_is_left_alone() -> None:
    inputs = [_numbers(16, 8, 40).bfloat16(), _numbers(12, 8, 3).bfloat16()]
    with without_onednn():
        module = trace_aten(lambda x, w: (F.conv1d(x, w),), inputs)
    assert not choose_small_convolutions(module)
