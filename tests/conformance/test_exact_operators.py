"""Operators that inductor computes wrongly are right natively: of special numbers, and in their gradients."""

import shutil
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from support import shows
from support.built_kernels import Built, Call, agree, build, with_gradient
from support.native_libraries import chosen_values
from support.tiers import others_long

pytestmark = [
    shows("native", "native-kernels"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler"),
    pytest.mark.timeout(3600),  # the first case builds the functions of all, on a busy machine, too
]


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


NAN, INF = float("nan"), float("inf")
#: Whole vectors of torch's own loops: of what remains torch computes ``fmod`` by another function, with other digits.
SPECIAL = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.0, 0.1, 1e-3, -1e-5, 1e-7, 1e-20, 1e-39, 65504.0, 1e10, -1e10, 1e20, -3.4e38,
     NAN, INF, -INF, 5.5, -5.5, 0.99999994, 255.5, 16777216.0, 1 / 3, -1 / 3, 7.0, 88.0, -100.0, 1e-45] * 2
)  # fmt: skip
OTHERS = SPECIAL[torch.randperm(len(SPECIAL), generator=torch.Generator().manual_seed(0))]
#: The least bf16 numbers: 0 to 63 times 2^-133.
DENORMAL = torch.arange(64, dtype=torch.int16).view(torch.bfloat16)
WORDS = (
    "acos acosh asin asinh atan atanh ceil cos cosh erf erfc erfinv exp exp2 expm1 floor frac log log10 log1p log2 neg "
    "reciprocal round rsqrt sigmoid sign sin sinh sqrt square tan tanh trunc"
).split()
FUNCTIONS = "elu celu selu relu6 hardtanh softshrink hardshrink softsign leaky_relu hardsigmoid".split()
PAIRS = ("remainder fmod floor_divide maximum minimum fmax fmin pow atan2 hypot copysign nextafter true_divide").split()
ELEMENTWISE: dict[str, Call] = {
    **{word: (getattr(torch, word), [SPECIAL]) for word in WORDS},
    **{word: (getattr(F, word), [SPECIAL]) for word in FUNCTIONS},
    **{f"{word} of two": (getattr(torch, word), [SPECIAL, OTHERS]) for word in PAIRS},
    "x // 0.1": (lambda x: x // 0.1, [SPECIAL]),
    "x % 0.7": (lambda x: x % 0.7, [SPECIAL]),
    "x % -3": (lambda x: x % -3, [SPECIAL]),
    "floor of x / 0.3": (lambda x: torch.div(x, 0.3, rounding_mode="floor"), [SPECIAL]),
    "x * 0": (lambda x: x * 0, [SPECIAL]),
    "0 / x": (lambda x: 0 / x, [SPECIAL]),
    "1 + 0 * x": (lambda x: 1 + 0 * x, [SPECIAL]),
    "zeros + x": (lambda x: torch.zeros_like(x) + x, [SPECIAL]),
    "0 - x": (lambda x: 0 - x, [SPECIAL]),
    "x ** -0.5": (lambda x: x**-0.5, [SPECIAL]),
    "x + 0.001 * y * y": (lambda x, y: torch.addcmul(x, y, y, value=0.001), [OTHERS, SPECIAL]),
    "x + 0.001 * y / x": (lambda x, y: torch.addcdiv(x, y, x, value=0.001), [OTHERS, SPECIAL]),
    "clamp_min": (lambda x: x.clamp_min(0), [SPECIAL]),
    "clamp upside down": (lambda x: x.clamp(2, -2), [SPECIAL]),
    "constants, rounded": (lambda x: (torch.full_like(x, 0.3) * 1.5 - 0.45) * 1e8, [SPECIAL]),
    "constants, cancelled": (lambda x: torch.ones_like(x) * 2.0**24 + 1 - 2.0**24, [SPECIAL]),
    "constants, overflown": (lambda x: torch.full_like(x, 1e30) * 1e30 * 1e-30, [SPECIAL]),
    "constants of f64": (lambda x: (torch.full_like(x, 0.1, dtype=torch.float64).float() * 3 - 0.3) * 1e8, [SPECIAL]),
    "constants of bf16": (lambda x: torch.full_like(x, 0.3, dtype=torch.bfloat16).float() * 3, [SPECIAL]),
    "constants of f16": (lambda x: x.half().fill_(0.3).float() - 0.1, [SPECIAL]),
    "constants, compared": (lambda x: torch.maximum(torch.full_like(x, NAN), torch.zeros_like(x)), [SPECIAL]),
    **{
        word: (getattr(torch.special, word), [4 * numbers(9, 40), torch.arange(9.0).reshape(9, 1)])
        for word in (
            "hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p "
            "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w"
        ).split()
    },
    "denormal bf16": (lambda x: x * 0.75, [DENORMAL]),
    "denormal bf16, compared": (lambda x, y: (x * y) > 0, [DENORMAL, DENORMAL.flip(0) * 2.0**126]),
    "next bf16": (lambda x: torch.nextafter(x.bfloat16(), (x + 1).bfloat16()), [SPECIAL]),
    "next f16": (lambda x: torch.nextafter(x.half(), (x - 1).half()), [SPECIAL]),
}


NARROW = torch.tensor([0, 1, 2, 3, 254, 255, 128, 127, 5] * 3, dtype=torch.uint8)
SIGNED = torch.tensor([0, 1, -1, 127, -128, 5, -5, 100, 7] * 3, dtype=torch.int8)
WHOLE: dict[str, Call] = {
    f"{word} {name}": (function, [x])
    for name, x in {"uint8": NARROW, "int8": SIGNED, "int16": SIGNED.to(torch.int16) * 200}.items()
    for word, function in {
        "sum cut": lambda x: (x + x) >> 1, "product cut": lambda x: (x * x) // 3, "compared": lambda x: (x - 5) > 3,
        "widened": lambda x: (x + x).float(), "shifted": lambda x: (x << 3) >> 3, "negated": lambda x: (-x) > 0,
        "clamped": lambda x: x.clamp(2, -2), "place of the least": lambda x: x.reshape(3, 9).min(1)[1],
        "place of the largest": lambda x: x.reshape(3, 9).argmax(1),
    }.items()
}  # fmt: skip
TRUTHS: dict[str, Call] = {
    f"place of the {word}": (function, [numbers(8, 9)])
    for word, function in {
        "first false": lambda x: (x > 0).min(1)[1], "first true": lambda x: (x > 0).max(1)[1],
        "first false, kept": lambda x: (x > 0).min(1, keepdim=True)[1],
    }.items()
}  # fmt: skip

LABELS = torch.tensor([[1, 3, -1, 0, 2], [4, 3, 2, 1, 0], [-1, -1, -1, -1, -1], [0, -1, 2, 3, 1]])
UNLIKE = numbers(40)
UNLIKE[::9] = NAN
UNLIKE[4], UNLIKE[5] = INF, -INF


def infinite(*shape: int, at: int) -> torch.Tensor:
    """Numbers, one of which is infinite."""
    made = numbers(*shape)
    made.view(-1)[at] = INF
    return made


def mostly(value: float, *shape: int) -> torch.Tensor:
    """Numbers, of which six in ten are ``value``."""
    share = torch.rand(*shape, generator=torch.Generator().manual_seed(1))
    return torch.where(share < 0.6, value, numbers(*shape))


INFINITE: dict[str, Call] = {
    **{f"mean of {at} beside a variance": (lambda x: torch.var_mean(x, -1), [infinite(3, 7, at=at)])
       for at in (0, 5, 6)},
    "mean of all beside a deviation": (torch.std_mean, [infinite(3, 7, at=4)]),
    "mean of columns beside a deviation": (lambda x: torch.std_mean(x, 0, keepdim=True), [infinite(3, 7, at=4)]),
    "deviation of large numbers": (lambda x: torch.std(x, -1), [numbers(3, 7) * 1e25]),
    "deviation of large bf16 numbers": (lambda x: torch.std(x, 0), [(numbers(7, 33) * 1e30).bfloat16()]),
    "mean of large numbers beside a deviation": (torch.std_mean, [numbers(3, 7) * 1e25]),
    "mean of finite numbers": (lambda x: torch.var_mean(x, (0, 2)), [numbers(3, 7, 5)]),
    **{
        f"interpolated {len(shape) - 2} {corners} {at}": (
            lambda x, m=mode, c=corners: F.interpolate(x, scale_factor=2, mode=m, align_corners=c),
            [infinite(*shape, at=at)],
        )
        for mode, shape in {"linear": (2, 3, 8), "bilinear": (2, 3, 4, 5), "trilinear": (1, 2, 3, 4, 5)}.items()
        for corners in (False, True) for at in (7,)
    },
    **{
        f"batch norm with kept statistics, {what} infinite": (
            lambda *args: torch.ops.aten.native_batch_norm(*args, False, 0.1, 1e-5)[0],
            [each if name != what else infinite(*each.shape, at=2)
             for name, each in {"x": numbers(3, 5, 4), "weight": numbers(5), "bias": numbers(5), "mean": numbers(5),
                                "variance": numbers(5).abs()}.items()],
        )
        for what in ("x", "weight", "mean", "variance")
    },
    "convolution of NaN, rectified": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=3).relu(),
        [torch.where(numbers(2, 3, 16, 16) > 2.5, NAN, numbers(2, 3, 16, 16)), numbers(8, 3, 7, 7)],
    ),
    "interpolated to fewer": (lambda x: F.interpolate(x, (3, 7), mode="bilinear"), [infinite(2, 3, 5, 5, at=7)]),
    "interpolated by a part": (
        lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=False),
        [infinite(2, 3, 5, 5, at=7)],
    ),
    **{
        f"place of the largest of {k}, step {step}, {pad} around, {gap} apart{', ceiled' if ceiled else ''}": (
            lambda x, sizes=(k, step, pad, gap, ceiled): F.max_pool2d(x, *sizes, return_indices=True),
            [mostly(-INF, 2, 3, 9, 10)],
        )
        for k, step, pad, gap, ceiled in ((3, 2, 1, 1, False), (3, 1, 1, 2, True), (4, 2, 2, 1, False),
                                          (7, 2, 3, 1, True))
    },
    "place of the largest in volumes": (
        lambda x: F.max_pool3d(x, 2, 2, 1, return_indices=True), [mostly(-INF, 2, 3, 4, 4, 5)],
    ),
    **{
        f"place of the largest of {axes} axes pooled to {size}": (
            lambda x, pool=pool, n=size: pool(x, n, return_indices=True), [mostly(NAN, 2, 3, *[4] * axes)],
        )
        for axes, pool in ((2, F.adaptive_max_pool2d), (3, F.adaptive_max_pool3d)) for size in (1, 2, 3)
    },
}  # fmt: skip


#: Results whose layout inductor changes.
LAYOUTS: dict[str, Call] = {
    "joined with nothing": (lambda x: torch.cat([x.transpose(1, 2) * 2, x[..., 8:].transpose(1, 2)], -1),
                            [numbers(2, 5, 3, 8)]),
    "joined alone": (lambda x: torch.cat([x.permute(0, 3, 1, 2) + 1]), [numbers(2, 4, 4, 3)]),
    "joined with a wider nothing": (
        lambda x: torch.cat([x.transpose(0, 1) * 2, torch.zeros(0, dtype=torch.float64)]), [numbers(4, 5)],
    ),
}  # fmt: skip


def pooled(pool: Any, k: int, step: int, pad: int, counts: bool) -> Any:
    return with_gradient(lambda x: pool(x, k, step, pad, ceil_mode=True, count_include_pad=counts))


GRADIENTS: dict[str, Call] = {
    **{
        f"average of {k}, step {step}, {pad} around, {len(shape) - 2} axes{'' if counts else ', inside'}":
            (pooled(pool, k, step, pad, counts), [numbers(*shape)])
        for k, step, pad in ((2, 2, 0), (3, 2, 1), (3, 3, 0))
        for pool, shape in ((F.avg_pool1d, (2, 3, 8)), (F.avg_pool2d, (2, 3, 7, 8)), (F.avg_pool3d, (1, 2, 5, 6, 7)))
        for counts in (True, False)
    },
    **{
        f"{name} {reduction}": (with_gradient(lambda x, y, loss=loss, r=reduction: loss(x, y, reduction=r)),
                                [UNLIKE, numbers(40)])
        for name, loss in {"smooth l1": F.smooth_l1_loss, "huber": F.huber_loss, "l1": F.l1_loss}.items()
        for reduction in ("mean", "none")
    },
    **{
        f"soft margin {reduction}": (
            with_gradient(lambda x, y, r=reduction: F.soft_margin_loss(x, y.sign(), reduction=r)),
            [UNLIKE, numbers(40)],
        )
        for reduction in ("mean", "none")
    },
    **{
        f"multilabel margin {reduction}": (
            with_gradient(lambda x, y, r=reduction: F.multilabel_margin_loss(x, y, reduction=r)),
            [numbers(4, 5), LABELS],
        )
        for reduction in ("mean", "sum", "none")
    },
    **{
        f"nearest in bf16 by {factor}": (
            with_gradient(lambda x, f=factor: F.interpolate(x, scale_factor=f)), [numbers(2, 3, 4, 4).bfloat16()],
        )
        for factor in (0.6, 1.7)
    },
    **{
        f"bilinear to {sizes} {corners} in {dtype}": (
            with_gradient(lambda x, s=sizes, c=corners: F.interpolate(x, s, mode="bilinear", align_corners=c)),
            [numbers(2, 3, 5, 6).to(dtype)],
        )
        for sizes, dtype in (((10, 12), torch.float32), ((3, 13), torch.float32), ((5, 6), torch.float32),
                             ((5, 1), torch.float32), ((8, 4), torch.bfloat16))
        for corners in (True, False)
    },
    "bilinear by 1.7": (
        with_gradient(lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=False)),
        [numbers(2, 3, 5, 5)],
    ),
    **{
        f"weight norm along {axis}": (
            with_gradient(lambda v, g, a=axis: torch._weight_norm(v, g, a)),
            [numbers(4, 3, 5), numbers(*(n if i == axis else 1 for i, n in enumerate((4, 3, 5))))],
        )
        for axis in (0, 2)
    },
    "length in weight norm": (
        with_gradient(lambda g, v: torch._weight_norm(v, g, 0)), [numbers(4, 1, 1), numbers(4, 3, 5)],
    ),
}  # fmt: skip


def beside(first: Any, second: Any) -> Any:
    """Gradients of two functions of the same values, which inductor computes in one loop."""
    return with_gradient(lambda x: (first((x * 1.5).tanh()).sum(), second((x * 0.7).tanh()).sum()))


#: Functions with scattered gradients.
SCATTERING = {
    "max": lambda x: x.max(-1)[0], "min": lambda x: x.min(1)[0], "kthvalue": lambda x: x.kthvalue(2, -1)[0],
    "topk": lambda x: x.topk(2, -1)[0], "mode": lambda x: x.mode(-1)[0], "diagonal": lambda x: x.diagonal(1, 0, 1),
    "select": lambda x: x.select(1, 2), "slice": lambda x: x[:, 1:5:2],
    "gather": lambda x: x.gather(1, torch.zeros(4, 2, 3, dtype=torch.long)),
}  # fmt: skip
TOGETHER: dict[str, Call] = {
    f"{name} beside {other}": (beside(largest, function), [numbers(4, 6, 3)])
    for name, function in SCATTERING.items()
    for other, largest in {
        "amax": lambda x: x.amax(-1), "the largest norm": lambda x: x.norm(INF, -1),
    }.items()
}  # fmt: skip


#: One of each kind: the others differ in the operator, the dtype or the sizes.
SHORT = {
    "hardshrink", "remainder of two", "x * 0", "constants, cancelled", "sum cut uint8", "place of the first false",
    "mean of 5 beside a variance", "interpolated 2 False 7", "average of 3, step 2, 1 around, 2 axes, inside",
    "smooth l1 none", "max beside amax", "nearest in bf16 by 1.7",
    "place of the largest of 3, step 2, 1 around, 1 apart", "place of the largest of 2 axes pooled to 3",
    "joined with nothing", "batch norm with kept statistics, weight infinite", "convolution of NaN, rectified",
    "bilinear to (3, 13) False in torch.float32", "weight norm along 2",
}  # fmt: skip


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest) -> dict[str, Built]:
    """Build the functions of the cases that run."""
    functions = ELEMENTWISE | WHOLE | TRUTHS | INFINITE | GRADIENTS | TOGETHER | LAYOUTS
    return build({name: functions[name] for (name,) in sorted(chosen_values(request, "name"))})


@pytest.mark.parametrize("name", others_long([*ELEMENTWISE, *WHOLE, *TRUTHS], SHORT))
def test_special_numbers_are_torchs(built: dict[str, Built], name: str) -> None:
    native, portable = built[name].results()
    for ours, theirs in zip(native, portable, strict=True):
        assert agree(ours, theirs, 3e-6 if theirs.dtype is torch.float32 else 0.0), (ours, theirs)


@pytest.mark.parametrize("name", others_long([*INFINITE, *GRADIENTS, *TOGETHER], SHORT))
def test_sums_and_gradients_are_torchs(built: dict[str, Built], name: str) -> None:
    native, portable = built[name].results()
    for ours, theirs in zip(native, portable, strict=True):
        finite = theirs.isfinite()
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(ours[theirs.isinf()], theirs[theirs.isinf()])
        assert torch.all((ours - theirs)[finite].abs() <= 3e-6 * theirs[finite].abs().sum())


@pytest.mark.parametrize("name", others_long(LAYOUTS, SHORT))
def test_layouts_are_torchs(built: dict[str, Built], name: str) -> None:
    (native,), (portable,) = built[name].results()
    assert native.stride() == portable.stride()
    assert torch.equal(native, portable)


def draws(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    """Values and masks of two dropouts with a product between."""
    first = torch.rand(x.shape) < 0.5
    second = torch.rand(4, 5) < 0.3
    return [(x * first) @ w * second, first, second, torch.randn(7, 3)]


def test_random_numbers_are_those_of_the_portable_form_in_its_order() -> None:
    made = build({"draws": (draws, [numbers(4, 6), numbers(6, 5)])})["draws"]
    found = []
    for form in (made.native, made.portable):
        torch.manual_seed(3)
        found.append(form(tuple(each.clone() for each in made.inputs), {}))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
