"""Public reports of silently wrong results of torch's code generator for processors, as functions with inputs.

Each stands under the number of its report in github.com/pytorch/pytorch; a word tells several of one report apart.
``docs/upstream-reports.md`` says what was wrong. ``scripts/upstream_reports.py`` tries them with ``torch.compile``.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.nn.functional as F

from support.built_kernels import Call, with_gradient

NAN, INF = float("nan"), float("inf")


def number_of(name: str) -> str:
    """Return the report's number of a case, empty for one of ours."""
    first = name.split()[0]
    return first if first.isdigit() else ""


#: Whole vectors, where torch's own loops have one form.
EDGE = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 3.0, -3.0, 6.0, 1.0, -1.0, 0.5, -0.5, 1e-8, -1e-8, 30.0, -30.0] * 2)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def whole(*shape: int, least: int = -9, most: int = 9, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(least, most + 1, shape, generator=generator).to(dtype)


def with_gradients(function: Any) -> Any:
    """Return a function that gives results and the gradients of all its arguments."""

    def made(*given: torch.Tensor) -> list[torch.Tensor]:
        leaves = [t.detach().requires_grad_() if t.is_floating_point() else t for t in given]
        out = function(*leaves)
        wanted = [t for t in leaves if t.requires_grad]
        return [out.detach(), *torch.autograd.grad(out.sum(), wanted)]

    return made


# --- scatters, indices and what is overwritten


def put_then_flipped(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.index_put_((torch.arange(4),), x * 2)
    x.add_(x.flip(0))
    return x


def copied_then_flipped(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.index_copy_(0, torch.arange(4), x * 2)
    x.copy_(x.flip(0))
    return x


def scattered_then_zeroed(x: torch.Tensor, source: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone()
    made = torch.slice_scatter(x, source[1:3], dim=0, start=1, end=3)
    x.fill_(0)
    return [made, x]


def padded_then_put(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    padded = F.pad(x, (0, 0))
    x[0].fill_(1)
    return torch.sort(padded)[0] + x * 0


def viewed_then_changed(x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone()
    y = x.view(torch.int32) * 2
    y.sub_(-4)
    x[:, 2:5].fill_(2)
    return [y.view(torch.int64), x]


def column_added(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 0] += x[:, 2].abs()
    return y


def own_rows_added(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    places = torch.zeros(2, dtype=torch.int64)
    x[places] += x[places]
    return x


def row_of_sums(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    sums = torch.zeros(1, x.shape[1])
    sums.scatter_add_(0, places.unsqueeze(-1).expand(-1, x.shape[1]), x)
    return torch.index_select(sums, 0, places)


def turned_and_added(x: torch.Tensor, a: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    y = x.clone().permute(1, 0)
    y.index_add_(0, places, a)
    return y


def added_to_zeros(source: torch.Tensor) -> list[torch.Tensor]:
    out = torch.zeros(1, dtype=torch.float64).index_add(0, torch.zeros(1, dtype=torch.int64), source, alpha=2.0) / 2
    return [out, source]


def lerped(p: torch.Tensor, x: torch.Tensor, m: torch.Tensor) -> list[torch.Tensor]:
    m, p = m.clone(), p.clone()
    m.lerp_(x.bfloat16().float() @ p, 0.05)
    p.add_(m, alpha=-0.01)
    return [p, m, (x @ p).bfloat16().float()]


def spread_out(function: Any) -> Any:
    """Return a function that changes rows of a tensor whose rows are one in memory."""
    return lambda x, places, source: function(x.sum(0, keepdim=True).expand(5, -1), places, source)


def largest_of_rows(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return torch.full((3,), -INF).index_reduce(0, places, x, "amax", include_self=False)[:2]


def feature_and_largest(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor) -> torch.Tensor:
    feature = x @ w1
    feature = feature + feature @ w2
    return feature + feature.amax(1, keepdim=True).expand(-1, 10, -1) @ w3


INDICES: Final[Mapping[str, Call]] = {
    "198270": (put_then_flipped, [numbers(4, 8)]),
    "198270 copied": (copied_then_flipped, [numbers(4, 8)]),
    "198094": (scattered_then_zeroed, [whole(4, 6), whole(5, 6)]),
    "198101": (viewed_then_changed, [whole(4, 6)]),
    "177631": (padded_then_put, [torch.zeros(2, 2)]),
    "136662": (with_gradients(column_added), [numbers(2, 3)]),
    "174074": (own_rows_added, [numbers(2, 3)]),
    "191571": (row_of_sums, [numbers(8, 4), torch.zeros(8, dtype=torch.int64)]),
    "111133": (turned_and_added, [torch.ones(3, 5), numbers(3, 3), torch.tensor([0, 4, 2])]),
    "108963": (added_to_zeros, [numbers(1, dtype=torch.float64)]),
    "94778": (lambda x, v: torch.index_add(x, 0, torch.arange(5), v.expand(5, 5)), [numbers(5, 5), numbers(5)]),
    "183575": (lerped, [numbers(8, 8), numbers(8, 8), numbers(8, 8)]),
    **{
        f"183986 {name}": (spread_out(function), [numbers(3, 8), torch.tensor([0, 2]), numbers(2, 8)])
        for name, function in {
            "index_add": lambda x, i, s: x.index_add(0, i, s),
            "index_copy": lambda x, i, s: x.index_copy(0, i, s),
            "index_fill": lambda x, i, s: x.index_fill(0, i, 7.0),
            "index_put": lambda x, i, s: x.index_put((i,), s),
            "index_put added": lambda x, i, s: x.index_put((i,), s, accumulate=True),
        }.items()
    },
    "168358": (with_gradients(largest_of_rows), [numbers(5), torch.tensor([0, 1, 0, 1, 0])]),
    "182012": (with_gradients(lambda x, s: torch.diagonal_scatter(x, s, 0)), [numbers(8, 8), numbers(8)]),
    "182012 another": (with_gradients(lambda x, s: torch.diagonal_scatter(x, s, 2)), [numbers(6, 8), numbers(6)]),
    "180164": (
        with_gradients(lambda x, y: torch.slice_scatter(x, y, dim=1, start=0, end=6).sum(1)),
        [numbers(4, 13, 33), numbers(4, 6, 33)],
    ),
    "180771": (with_gradients(lambda x, y: torch.slice_scatter(x, y, dim=0, start=1, end=3)), [numbers(5), numbers(2)]),
    "select_scatter": (with_gradients(lambda x, y: torch.select_scatter(x, y, 1, 2)), [numbers(4, 5), numbers(4)]),
    **{
        f"gradient of {word}": (with_gradients(getattr(F, word)), [EDGE])
        for word in "hardswish hardsigmoid hardtanh relu6 leaky_relu elu celu selu softplus silu mish "
        "gelu logsigmoid tanhshrink softsign".split()
    },
    "186799": (with_gradients(lambda x, y: torch.atan2(x, y).amin(-1)), [numbers(5, 3), numbers(3, 5).t()]),
    "186799 largest": (
        with_gradients(feature_and_largest),
        [numbers(1, 10, 2), numbers(2, 2), -numbers(2, 2), numbers(2, 2).t()],
    ),
    "100793": (with_gradients(lambda x: F.pad(x, (-1, 0, 6, 6), mode="reflect")), [numbers(3, 7, 7, 2)]),
}


# --- whole numbers

NARROW = torch.tensor([0, 1, 2, 3, 4, 6, 127, 128, 200, 250, 255] * 6, dtype=torch.uint8)
SIGNED = torch.tensor([0, 1, -1, 5, -5, 100, 127, -128, -100, 13, 7] * 6, dtype=torch.int8)
EDGES = torch.tensor([2**31 - 1, -(2**31), 5, -7, 2**30, 123456789, 1, 0] * 4, dtype=torch.int32)
POSITIVE = torch.tensor([5, 4, 100, 3, 7, 8, 9, 13, 100, 120, 127, 2, 6, 4, 11, 12, 90, 80])

NARROW_ONES: Final = {
    "uint8": POSITIVE.to(torch.uint8),
    "int8": POSITIVE.to(torch.int8),
    "int8 below": -POSITIVE.to(torch.int8),
    "int16": POSITIVE.to(torch.int16) * 200,
}
EXTREMES: Final[Mapping[str, Callable[..., Any]]] = {
    "min": torch.min,
    "max": torch.max,
    "argmin": torch.argmin,
    "argmax": torch.argmax,
    "amin of rows": lambda x: x.reshape(2, 9).amin(1),
    "prod": lambda x: x[:5].prod(),
    "cummax": lambda x: list(x.cummax(0)),
}


def products_added(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return (x @ y + x @ z + (p @ y + p @ z)).sum(1)


WHOLE: Final[Mapping[str, Call]] = {
    "105264": (lambda x: (x + x).to(torch.int16), [NARROW]),
    "93829": (lambda x: [-x, (-x) < 4], [NARROW]),
    "98149": (lambda x: torch.cos(x.pow(5)), [NARROW]),
    "109105": (lambda x: ((x * 6 + x * 4) * 2).to(torch.int32), [SIGNED]),
    "108520": (lambda x: (x + x).to(torch.int64), [EDGES]),
    "108520 product": (lambda x: (x * x - 3).to(torch.int64), [EDGES]),
    "108520 negated": (lambda x: [(-x).to(torch.int64), x.abs().to(torch.int64)], [EDGES]),
    "190764": (products_added, [whole(2, 2, least=-(2**31), most=2**31 - 1, dtype=torch.int32) + n for n in range(4)]),
    "190764 sum": (lambda x: (x + x).sum(), [EDGES]),
    "190764 less": (lambda x: (x + 1) > x, [EDGES]),
    "143566": (torch.bitwise_left_shift, [torch.tensor([1000, 1, -1, 5]), torch.tensor([64, 63, 70, -1])]),
    "143566 right": (torch.bitwise_right_shift, [torch.tensor([1000, 1, -1, 5]), torch.tensor([64, 63, 70, -1])]),
    "143566 narrow": (lambda x, y: [x << y, x >> y], [SIGNED, SIGNED.abs() % 12]),
    "143566 32": (lambda x: [x << 33, x >> 40], [EDGES]),
    "198081": (
        lambda x: [x.any(), x.all(), x.any(0), x.all(1), x.any() * 200 + 100],
        [whole(3, 4, least=0, dtype=torch.uint8)],
    ),
    **{
        f"191499 {word} {name}": (function, [x])
        for name, x in NARROW_ONES.items()
        for word, function in EXTREMES.items()
    },
    "189518": (lambda x: torch.ones(2, 4, 4, dtype=torch.bool).cumsum(1, dtype=torch.bfloat16) + x, [numbers(4)]),
    "109925": (lambda x: torch.full((3, 4), True).cumsum(1) + x, [whole(4)]),
    "141559": (lambda a, b: (a > 1) & (b > 1), [whole(10), whole(10, least=0, dtype=torch.uint8)]),
    "182343": (
        lambda edges, x: torch.searchsorted(edges[1:], x, right=True),
        [torch.tensor([0, 3, 7, 12]), torch.arange(12)],
    ),
    "145929": (torch.bucketize, [NARROW, torch.tensor([-10, -7, -7, -3, 4], dtype=torch.int8)]),
    "183901": (lambda x: torch.arange(9) * torch.full((1,), 1500000000) + x, [whole(9)]),
    "96728": (
        lambda a, b: [torch.cat((a.max(0).values, b)).round(), b >= a.max(0).values[0]],
        [torch.tensor([[4.0]]), torch.tensor([5.0])],
    ),
}


# --- numbers that become others

NEAR = torch.tensor([1.5410, -0.2934, -2.1788, 0.5684, -1.0845, 200.7, 300.2, -128.9, -300.0, 0.0] * 5)

CASTS: Final[Mapping[str, Call]] = {
    "156788": (lambda x: x.to(torch.uint8), [NEAR]),
    "156788 int8": (lambda x: [x.to(torch.int8), x.to(torch.int16)], [NEAR]),
    "156788 of bf16": (lambda x: x.bfloat16().to(torch.uint8), [NEAR]),
    "156788 of whole": (lambda x: [x.to(torch.uint8), x.to(torch.int8), x.to(torch.int16)], [EDGES]),
    "151510": (
        lambda x: torch.nan_to_num(x, nan=0, posinf=2**63 - 1, neginf=-(2**63)).long(),
        [torch.tensor([[INF, -INF, NAN]])],
    ),
    "151510 int": (
        lambda x: [x.int(), x.long(), x.short()],
        [torch.tensor([INF, -INF, NAN, 3e9, -3e9, 1e19, 7.9] * 5)],
    ),
    "100466": (lambda x: x * (x >= 0), [NEAR]),
    "183761": (lambda x: (torch.where(x > 0, torch.full_like(x, 0.1), x).half() + x.half()).float(), [numbers(64)]),
    "182131": (lambda x: [(x * 1.1).half().float().sum(), (x * 1.1).bfloat16().float() * 3], [numbers(64)]),
    "182225": (
        lambda q, c, s: (q * c) + torch.cat((-q[..., 8:], q[..., :8]), -1) * s,
        [
            numbers(1, 2, 7, 16).bfloat16(),
            numbers(1, 1, 7, 16).bfloat16(),
            numbers(1, 7, 1, 16).bfloat16().transpose(1, 2),
        ],
    ),
    "173054": (
        lambda g, x: torch.ops.aten.hardswish_backward(g, x) + 1,
        [numbers(10, 20).bfloat16(), numbers(20, 10).reshape(10, 20).bfloat16()],
    ),
    "160730": (lambda x: torch.sin(torch.tan(x).expand(31, 51, 1) * 0.5), [(numbers(31, 51, 1).abs() * 3).half()]),
    "145466": (lambda x: torch.cos(x.half()).floor(), [numbers(32, 32)]),
    "172068": (
        torch.ldexp,
        [numbers(1, 100).half(), whole(1, 100, least=2, most=32, dtype=torch.int8)],
    ),
}


# --- functions of numbers

SPECIAL = torch.tensor(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        -0.1,
        -0.9,
        3.0,
        0.1,
        -1e-8,
        -1e-10,
        -1e-30,
        -1e-38,
        1e-39,
        1e10,
        1e20,
        -3e38,
        NAN,
        INF,
        -INF,
        5.5,
        0.99999994,
        0.9999,
        255.5,
        100.0,
        -100.0,
        7.0,
        88.0,
        1e-45,
        -1e-20,
        2.0,
    ]
    * 2
)
SMALL = torch.tensor([0.3, 1.0, 2.0, 0.1, 5.0, 10.5, 100.0, 0.01, 3.3, 7.7, 25.0] * 4)

FUNCTIONS: Final[Mapping[str, Call]] = {
    "197895": (
        lambda a, b: [a // b, torch.div(a, b, rounding_mode="floor")],
        [torch.tensor([1.0, 0.5, 6.0, 1.0] * 8), torch.tensor([0.1, 0.1, 0.2, 1 / 3] * 8)],
    ),
    "198133": (torch.erfinv, [torch.tensor([0.99, 0.9999, 0.999999, 0.9999999, 0.99999994, -0.9999] * 6)]),
    "198133 f64": (torch.erfinv, [torch.tensor([0.999, 1 - 1e-9, 1 - 1e-12, 1 - 1e-16] * 5, dtype=torch.float64)]),
    "143648": (lambda x: torch.special.polygamma(0, x), [SMALL]),
    "147450": (lambda x: torch.special.polygamma(1, x), [SMALL]),
    "147450 second": (lambda x: torch.special.polygamma(2, x), [SMALL]),
    "185702": (
        lambda c, y: torch.stack(
            [
                torch.special.gammaln(F.softplus(c[..., 16]) + 1),
                torch.special.erf(c[..., 16]),
                torch.special.xlogy(F.softplus(c[..., 16]), F.softplus(y)),
            ],
            -1,
        ),
        [numbers(4, 8, 20), numbers(4, 8)],
    ),
    "183082": (lambda x: x.clone().sin_().t().argmax(), [numbers(5, 7)]),
    "118266": (lambda x: torch.log1p(x).argmax(), [torch.tensor([-3.0, 99.0, 5.0, -2.0])]),
    "189799 added": (lambda x: torch.reciprocal(torch.ceil(x) + torch.zeros_like(x)), [SPECIAL]),
    "189799 elu": (lambda x: 1 / F.elu(x), [SPECIAL]),
    "189799 roots": (lambda x: torch.rsqrt(torch.sqrt(x)), [SPECIAL]),
    "189801": (lambda x: F.elu(x, alpha=0.52) / torch.zeros_like(x), [SPECIAL]),
    "189803": (lambda x: torch.reciprocal(F.elu(x, 1.24) + torch.exp(F.elu(x, 1.24))), [numbers(24, 57).abs()]),
    "183606": (lambda x: [torch.frac(x), 1 / torch.frac(x)], [SPECIAL]),
    "194347": (
        lambda x, y: [torch.minimum(x, y), torch.maximum(x, y)],
        [torch.tensor([-0.0, 0.0] * 16), torch.tensor([0.0, -0.0] * 16)],
    ),
    "186018": (lambda x: [torch.sin(torch.atan(x)), torch.rsqrt(x).angle().atan().sin()], [SPECIAL]),
    "186018 one": (lambda x: torch.sin(torch.atan(x)), [torch.tensor([NAN, 1.0, INF])]),
    "163932": (lambda x: torch.softmax(x * 1e14, 0), [numbers(25)]),
    "163932 divided": (lambda x: torch.softmax(x / 1e-14, -1), [numbers(3, 25)]),
    "93784": (
        lambda x, y: [x.clamp_min(0.5), torch.maximum(x, y), torch.clamp_min(x, y), F.relu(x)],
        [SPECIAL, SPECIAL.flip(0)],
    ),
    "100987": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), [numbers(1, 2, 6, 7)]),
    "126848": (lambda x: x * 2.0 ** (-127 + 3), [torch.tensor([0.1875, 1.0, 3.0])]),
    "142839": (F.instance_norm, [numbers(1, 3, 128, 128) + 5]),
    "143182": (lambda x: F.layer_norm(x, (200, 100)), [numbers(2, 200, 100) + 3]),
    "154703": (lambda x: x.mean(), [numbers(1024, 1200) + 1]),
    "172062": (with_gradient(lambda x: x.cumprod(1)), [whole(3, 6, least=-2, most=2).float()]),
    "185480": (lambda x: [F.celu(x), F.elu(x)], [torch.tensor([-9.1e-41, -1e-39, -1e-3, 2.0] * 8).bfloat16()]),
    "118090": (
        lambda t, x: F.l1_loss(F.huber_loss(t, x).expand_as(x), x, reduction="none"),
        [SPECIAL, SPECIAL.flip(0)],
    ),
    "117034": (lambda x, t: F.kl_div(x, t, reduction="none"), [numbers(64).abs(), SPECIAL]),
    "185464": (
        with_gradient(F.multilabel_margin_loss),
        [numbers(2, 5), torch.tensor([[0, 1, -1, -1, -1], [3, -1, 2, 0, 0]])],
    ),
    "198119": (with_gradient(lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True)), [numbers(1, 2, 6, 6)]),
    "198119 line": (with_gradient(lambda x: F.avg_pool1d(x, 3, 2, ceil_mode=True)), [numbers(1, 2, 6)]),
    "177839": (lambda x: torch.special.logit(x, eps=0.51), [torch.full((2, 17), 0.3)]),
    "186281": (lambda x: [x * 0, 0 * x, x * 0.0], [SPECIAL]),
    "95193": (with_gradient(lambda x: torch.logit(x, eps=0.3)), [SMALL / 110]),
    "93824": (lambda x: x.clone().reciprocal_() + 1, [SPECIAL]),
    "94777": (lambda x: [torch.log(x), x.clone().log_()], [SMALL]),
    "161944": (torch.exp, [SPECIAL]),
    "142223": (torch.tanh, [SPECIAL]),
}


# --- loops and memory


def normed(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    power = torch.exp(-torch.einsum("i...,i->i...", x, scale))
    return torch.einsum("i,i...->i...", 1 / torch.einsum("i...->i", power), power)


def padded_product(x: torch.Tensor) -> torch.Tensor:
    v = (x * 0.5) * (torch.erf(x * 0.7071067811865476) + 1)
    rows = F.pad(v.permute(3, 2, 1, 0), (0, 0, 0, 58), value=0.5)
    columns = F.pad(v, (0, 0, 0, 0, 0, 58), value=0.5)
    return torch.matmul(columns, rows)


def normed_and_cut(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = F.batch_norm(F.conv2d(x, w), torch.zeros(50), torch.ones(50)).view(3, -1)
    return F.pad(y, (0, 50 - y.shape[-1]))


def normed_twice(x: torch.Tensor) -> torch.Tensor:
    y = F.group_norm(F.elu(F.batch_norm(x, torch.zeros(10), torch.ones(10))), 10)
    return torch.log(y.clamp(min=1e-3))


def of_pooled(x: torch.Tensor) -> torch.Tensor:
    pooled = F.normalize(F.adaptive_avg_pool2d(x, 1), dim=0)
    return F.normalize(F.hardswish(pooled * x), dim=0)


LOOPS: Final[Mapping[str, Call]] = {
    "196681": (padded_product, [numbers(1, 8, 66, 66).contiguous(memory_format=torch.channels_last)]),
    "196681 sum": (lambda x: (x.permute(2, 1, 0) * 0.5).sum(2), [numbers(17, 5, 66)]),
    "159154": (normed, [torch.ones(5, 1, 32, 32), torch.ones(5)]),
    "195582": (normed_and_cut, [numbers(3, 1, 4, 4), numbers(50, 1, 2, 2)]),
    "181696": (normed_twice, [torch.ones(6, 10, 12)]),
    "183120": (normed_twice, [numbers(6, 10, 4, 4)]),
    "183601": (of_pooled, [numbers(4, 3, 10, 12)]),
    "189895": (
        lambda m: F.pad(torch.cumsum(m.sum(-1, dtype=torch.int32), 0, dtype=torch.int32), (1, 0)),
        [torch.ones(1, 16384, dtype=torch.bool)],
    ),
    "144462": (lambda x: F.pad(x, (10, 10), value=0.0), [numbers(1, 1, 1)]),
    "197431": (lambda x: torch.as_strided(x.repeat(3, 2), (3, 2), (2, 1)) + 0, [numbers(1, 1)]),
    "93562": (lambda x: x[2].select(1, 2) * 1, [numbers(3, 4, 5, 6)]),
    "173885": (lambda x: F.layer_norm(x.half(), (20,)), [torch.cat([torch.tensor([INF]), numbers(59)]).reshape(3, 20)]),
    "151525": (
        lambda x, w, y: F.linear(F.conv_transpose2d(x, w, stride=2).flatten(1), y).argmax(1),
        [numbers(1, 3, 6, 6), numbers(3, 4, 3, 3), numbers(16, 676)],
    ),
    "185382": (
        lambda p, m, v: torch.addcdiv(p, m, (v.abs().sqrt() / math.sqrt(0.002)).add(1e-8), value=-0.01),
        [numbers(40), numbers(40), numbers(40)],
    ),
    "96064": (lambda x: torch.stack([torch.logsumexp(x[:, i], -1) for i in range(3)], 1), [numbers(5, 3, 10)]),
}


def attention(scale: float) -> Any:
    """Return attention written out, with a scale that is not the usual one."""
    return lambda q, k, v, mask: torch.softmax(q @ k.transpose(-2, -1) / scale + mask, -1) @ v


SHAPES: Final[Mapping[str, Call]] = {
    "198201": (lambda x: F.interpolate(x, scale_factor=(1.3, 1.5), mode="nearest"), [numbers(1, 1, 3, 4)]),
    "175154": (
        lambda x: F.interpolate(x, scale_factor=1.3, mode="nearest"),
        [numbers(1, 1, 1, 2, dtype=torch.float64)],
    ),
    "175154 exact": (lambda x: F.interpolate(x, scale_factor=1.3, mode="nearest-exact"), [numbers(1, 1, 3, 2)]),
    "93262": (lambda x: F.interpolate(x, size=[1, 1], mode="bilinear"), [numbers(2, 8, 7, 10)]),
    "100794": (
        with_gradients(lambda x, w: F.interpolate(F.conv2d(x, w), size=[1, 1], mode="nearest")),
        [numbers(1, 1, 4, 4), numbers(1, 1, 4, 4)],
    ),
    "174049": (
        attention(0.3),
        [numbers(1, 2, 8, 16), -numbers(1, 2, 8, 16), numbers(2, 1, 8, 16).transpose(0, 1), numbers(8, 8)],
    ),
    "191308": (torch.matmul, [torch.ones(1, 1, 2, dtype=torch.int8), torch.ones(1, 2, 2, dtype=torch.int8)]),
    "171282": (
        lambda x, t, w: F.binary_cross_entropy_with_logits(x, t, w, reduction="sum"),
        [numbers(4, 5, 6).bfloat16(), numbers(5, 4, 6).reshape(4, 5, 6).bfloat16(), numbers(6)],
    ),
    "183082 rows": (lambda x: [x.clone().sin_().t().argmax(1), x.t().argmin()], [numbers(5, 7)]),
    "184406": (lambda x, y: [torch.floor_divide(x, y), x % y], [EDGES, torch.where(EDGES % 3 == 1, 3, -1).int()]),
    "184406 i64": (
        lambda x, y: [torch.floor_divide(x, y), x % y],
        [torch.tensor([-(2**63), 7, -7, 2**40]), torch.tensor([-1, -1, 2, 7])],
    ),
    "188230": (lambda x: x + torch.minimum(torch.arange(8) > 2, torch.arange(8) < 6), [numbers(8)]),
    "quotient of places": (lambda x: x + torch.arange(8.0) // 2, [numbers(8)]),
}

REPORTS: Final[Mapping[str, Call]] = {**INDICES, **WHOLE, **CASTS, **FUNCTIONS, **LOOPS, **SHAPES}
