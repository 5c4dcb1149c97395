"""Proposals for a step: values computed from values, of the same shape or of another; and torch's views of them.

A proposal adds steps to a scene, or raises ``Unfit``. One that adds some and then fails leaves those: they are legal.
"""

from collections.abc import Callable
from typing import Final

from fuzzing.scene import Scene, Unfit

Proposal = Callable[[Scene], None]

#: Every proposal with its weight.
PROPOSALS: Final[list[tuple[float, Proposal]]] = []


def proposal(weight: float) -> Callable[[Proposal], Proposal]:
    """Register a proposal; ``weight`` says how often it is drawn."""

    def register(propose: Proposal) -> Proposal:
        PROPOSALS.append((weight, propose))
        return propose

    return register


#: One floating operand ``{a}``; ``{d}`` is an axis of it.
_UNARY: Final = (
    "torch.relu({a})", "{a}.tanh()", "{a}.sigmoid()", "F.gelu({a})", 'F.gelu({a}, approximate="tanh")', "F.silu({a})",
    "F.mish({a})", "F.elu({a})", "F.selu({a})", "F.celu({a}, 0.7)", "F.leaky_relu({a}, 0.2)", "F.hardtanh({a})",
    "F.hardswish({a})", "F.hardsigmoid({a})", "F.softplus({a})", "F.softsign({a})", "F.tanhshrink({a})",
    "F.logsigmoid({a})", "F.softshrink({a})", "F.hardshrink({a})", "F.relu6({a})", "F.threshold({a}, 0.1, 0.3)",
    "(-{a}.abs()).exp()", "{a}.abs().log1p()", "({a}.abs() + 1).sqrt()", "({a}.square() + 0.5).rsqrt()", "-{a}",
    "{a}.sin()", "{a}.cos()", "torch.erf({a})", "{a}.atan()", "{a}.clamp(-0.7, 0.8)", "{a}.clamp(min=0.1)",
    "{a}.clamp(max=0.4)", "{a} ** 2", "{a}.pow(3)", "({a}.abs() + 0.5) ** 0.5", "1 / ({a}.abs() + 1)", "{a}.floor()",
    "{a} - {a}.detach()", "{a}.sign() * {a}", "2.5 - {a}", "{a} / 3", "torch.expm1({a}.clamp(max=1))", "{a}.frac()",
    "{a}.asinh()", "{a}.nan_to_num()", "torch.special.expit({a})", "{a}.round()", "{a}.trunc() + {a}",
    "{a}.softmax({d})", "{a}.log_softmax({d})", "F.softmin({a}, {d})", "{a}.cumsum({d})", "F.normalize({a}, dim={d})",
    "{a}.flip({d})", "{a}.roll(2, {d})", "{a}.cummax({d})[0]", "({a} * 0.5).cumprod({d})", "{a}.sort({d})[0]",
    "{a}.sort({d}, descending=True).values", "{a}.tril()", "{a}.triu(1)", "{a}.clone()", "{a}.contiguous()",
    "{a}.logcumsumexp({d})", "F.dropout({a}, 0.3, training=False)", "{a}.masked_fill({a} > 0, 0.5)",
    "torch.where({a} > 0.2, {a}, {a} * 0.1)", "F.layer_norm({a}, {a}.shape[-1:])", "F.glu({a}, {d})",
    "torch.zeros_like({a}) + {a}", "torch.full_like({a}, 0.5) * {a}", "{a}.double().float()", "{a}.half().float()",
    "{a}.bfloat16().float()", "{a}.to(torch.float32)", "{a}.float() * 2", "{a}.type_as(torch.zeros(1))",
    "{a}.new_ones({a}.shape) - {a}", "torch.sgn({a}) + {a}", "{a}.clip(-1, 1)", "F.local_response_norm({a}, 2)",
    "F.dropout({a}, 0.0)", "F.alpha_dropout({a}, 0.4, training=False)", "F.dropout1d({a}, 0.2, training=False)",
    "F.feature_alpha_dropout({a}, 0.2, training=False)", "torch.native_dropout({a}, 0.5, False)[0]", "+{a}",
    "{a}.diff(dim={d})", "{a}.renorm(2, {d}, 1.0)", "{a} @ {a}.mT", "torch.addcmul({a}, {a}, {a}, value=0.3)",
    "F.rms_norm({a}, {a}.shape[-1:])", "F.instance_norm({a})", "F.group_norm({a}, 1)", "torch.cov({a})",
)  # fmt: skip

#: Two floating operands that broadcast.
_BINARY: Final = (
    "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / ({b}.abs() + 1)", "torch.maximum({a}, {b})",
    "torch.minimum({a}, {b})", "torch.where({a} > {b}, {a}, {b})", "torch.add({a}, {b}, alpha=0.5)",
    "torch.sub({a}, {b}, alpha=2)", "torch.lerp({a}, {b}, 0.3)", "torch.atan2({a}, {b}.abs() + 1)",
    "torch.hypot({a}, {b}.abs() + 1)", "torch.addcmul({a}, {b}, {b}, value=0.2)", "({a} > {b}).float() * {a}",
    "torch.addcdiv({a}, {b}, {b}.abs() + 1)", "{a} * {b}.sigmoid()", "{a}.masked_fill({b} > 0, -0.5)",
    "torch.broadcast_tensors({a}, {b})[0]", "{a} * {b}.detach()", "{a}.expand_as({a} + {b})",
    "torch.logaddexp({a}, {b})", "F.smooth_l1_loss({a}, {b}, reduction='none')", "torch.fmax({a}, {b})",
    "torch.cat([{a}, {a} * {b}], 0)", "torch.copysign({a}, {b})", "torch.rsub({a}, {b})",
    "torch.xlogy({a}, {b}.abs() + 1)",
)  # fmt: skip

#: Reductions of a floating operand, over ``{d}``.
_REDUCTIONS: Final = (
    "{a}.sum({d})", "{a}.sum({d}, keepdim=True)", "{a}.mean({d})", "{a}.mean({d}, keepdim=True)", "{a}.sum()",
    "{a}.mean()", "{a}.amax({d})", "{a}.amin({d}, keepdim=True)", "{a}.max({d})[0]", "{a}.min({d}).values",
    "{a}.max()", "{a}.var({d})", "{a}.std({d}, unbiased=False)", "{a}.var()", "{a}.norm()", "{a}.norm(2, {d})",
    "{a}.norm(1, {d})", "{a}.logsumexp({d})", "({a} * 0.5).prod({d})", "{a}.median({d})[0]",
    "{a}.kthvalue(1, {d})[0]", "{a}.topk(1, {d})[0]", "{a}.mode({d})[0]", "torch.var_mean({a}, {d})[0]",
    "torch.std_mean({a}, {d})[1]", "torch.linalg.vector_norm({a}, dim={d})", "{a}.aminmax(dim={d})[0]",
    "{a}.quantile(0.3, {d})", "{a}.nansum({d})", "{a}.square().sum({d}).sqrt()", "torch.trace({a})",
    "{a}.mean((0, -1))", "{a}.sum((-1, -2))", "{a}.flatten().dot({a}.flatten())", "{a}.nanmean({d})",
    "{a}.nanquantile(0.4, {d})", "{a}.amax((0, 1))", "{a}.nanmedian({d})[0]",
)  # fmt: skip


@proposal(6)
def unary(s: Scene) -> None:
    a = s.floating()
    s.add(s.one_of(_UNARY).format(a=a, d=s.dim(a) if s.values[a].dim() else 0))


@proposal(5)
def binary(s: Scene) -> None:
    a = s.floating()
    s.add(s.one_of(_BINARY).format(a=a, b=s.partner(a)))


@proposal(2)
def reduction(s: Scene) -> None:
    a = s.floating(range(1, 6))
    s.add(s.one_of(_REDUCTIONS).format(a=a, d=s.dim(a)))


@proposal(1)
def to_integers(s: Scene) -> None:
    """Propose integers and booleans that are computed from numbers."""
    a = s.floating(range(1, 6))
    s.add(
        s.one_of(
            (
                "{a}.argmax({d})",
                "{a}.argmin({d}, keepdim=True)",
                "{a} > 0.1",
                "({a} * 3).long()",
                "{a}.argsort({d})",
                "({a} > 0).sum({d})",
                "{a}.isfinite()",
                "({a} > 0).any({d})",
                "({a} > -1).all({d})",
                "{a}.count_nonzero({d})",
                "torch.bucketize({a}, torch.tensor([-0.5, 0.0, 0.5]))",
                "{a}.max({d})[1]",
                "({a} * 2).int()",
                "{a} != 0",
                "{a}.topk(1, {d})[1]",
                "~({a} > 0)",
                "({a} > 0) & ({a} < 1)",
                "{a}.signbit()",
                "{a}.le(0.0)",
            )
        ).format(a=a, d=s.dim(a))
    )


@proposal(1)
def integers(s: Scene) -> None:
    """Propose arithmetic of integers and booleans, back to numbers or not."""
    if s.chance(0.3):
        m = s.boolean()
        s.add(
            s.one_of(
                (
                    "~{m}",
                    "{m}.float()",
                    "{m} | {m}.flip(0)",
                    "{m}.long()",
                    "{m}.int() * 2",
                    "torch.where({m}, 1.0, -1.0)",
                    "{m}.sum()",
                    "{m}.logical_not()",
                    "{m}.cumsum(0)",
                    "torch.where({m}, 3, 4)",
                )
            ).format(m=m)
        )
        return
    i = s.integer()
    s.add(
        s.one_of(
            (
                "{i} + 1",
                "{i} * 3 - 2",
                "{i} // 2",
                "{i} % 3",
                "{i}.clamp(0, 2)",
                "{i}.float()",
                "{i} << 1",
                "{i} >> 1",
                "{i} & 3",
                "{i} | 1",
                "{i} ^ 5",
                "{i}.abs()",
                "-{i}",
                "{i}.sum()",
                "{i}.cumsum(0)",
                "{i} > 1",
                "{i} == 2",
                "{i}.to(torch.int32)",
                "{i}.to(torch.float32) / 3",
                "{i} / 2",
                "{i}.long()",
                "{i}.max()",
                "{i} ** 2",
                "~{i}",
                "F.one_hot({i}.abs() % 4, 4)",
                "F.one_hot({i}.abs() % 3, 3).float()",
                "torch.where({i} > 1, {i}, 0)",
                "{i} - {i}.min()",
                "{i}.float().mean()",
                "{i}.sort(0)[0]",
                "{i}.remainder(4)",
                "{i}.bool()",
                "{i}.prod()",
                "{i}.fmod(3)",
                "{i} * 0.5",
                "{i}.unique_consecutive().shape[0] * {i}",
                "{i}.to(torch.uint8)",
            )
        ).format(i=i)
    )


@proposal(1)
def constants(s: Scene) -> None:
    """Propose tensors that forward makes from nothing, alone or with a value."""
    a = s.floating(range(1, 6))
    n = s.shape(a)[-1]
    s.add(
        s.one_of(
            (
                f"{a} + torch.arange({n})",
                f"{a} * torch.arange({n}, dtype=torch.float32) * 0.1",
                f"torch.arange({n}).float()",
                f"{a} * torch.linspace(0, 1, {n})",
                f"{a} @ torch.eye({n})",
                f"torch.ones({n}, {n}).tril()",
                f"torch.zeros({n}) + {a}",
                f"torch.full(({n},), 0.25) * {a}",
                f"{a} * torch.tensor(0.3)",
                f"{a}.masked_fill(torch.arange({n}) > {n // 2}, 0.0)",
                f"torch.arange({n}) % 3",
                f"torch.arange(300)[-{n}:]",
                f"{a} + torch.arange(300, dtype=torch.float32)[-{n}:] * 0.01",
                f"torch.tril_indices({n}, {n})[0]",
                f"{a} * torch.logspace(-1, 0, {n})",
                f"torch.ones(2, {n}, dtype=torch.bool)",
                f"torch.scalar_tensor(2.0) * {a}",
                f"{a}.new_zeros(3, {n})",
                f"{a} * torch.hann_window({n + 2})[1:-1]",
                "torch.tensor([1, -1, 2])[[0, -1]]",
                f"torch.meshgrid(torch.arange({n}), torch.arange(2), indexing='ij')[0].float()",
                f"torch.cat([{a}, torch.zeros_like({a})], -1)",
                f"{a} * {a}.shape[0]",
                f"{a} + {a}.numel() / 100",
            )
        )
    )


#: Views of an operand of any dtype, and what else only moves elements; ``{d}`` and ``{e}`` are axes, ``{n}`` the size
#: of ``{d}``.
_MOVES: Final = (
    "{a}.transpose({d}, {e})", "{a}.unsqueeze({d})", "{a}.squeeze({d})", "{a}.squeeze()", "{a}.flatten()", "{a}.mT",
    "{a}.movedim({d}, {e})", "{a}.select({d}, -1)", "{a}.narrow({d}, 0, 1)", "{a}.chunk(2, {d})[-1]", "{a}[-1]",
    "{a}.split(2, {d})[0]", "{a}.unbind({d})[-1]", "{a}.tensor_split(2, {d})[1]", "{a}.reshape(-1)", "{a}.t()",
    "{a}.diagonal()", "{a}.diagonal(-1, {d}, {e})", "{a}.unfold({d}, 1, 2)", "{a}.unfold({d}, 2, 1)", "{a}[::2]",
    "{a}[..., ::2]", "{a}[..., 1:]", "{a}[..., :-1]", "{a}[1:]", "{a}[:-1]", "{a}[..., -1]", "{a}[:, None]",
    "{a}[..., None]", "{a}[0]", "{a}[:, [0, -1]]", "{a}[..., [-1]]", "{a}[[0, 0, -1]]", "{a}[..., :1]",
    "{a}[:, torch.tensor([0])]", "{a}[torch.arange({a}.shape[0]) % 2]", "{a}.expand(2, *{a}.shape)",
    "{a}.repeat(2, *[1] * ({a}.dim() - 1))", "{a}.repeat_interleave(2, {d})", "{a}.tile(2)", "{a}.roll(1)",
    "torch.cat([{a}, {a}], {d})", "torch.stack([{a}, {a}], {d})", "{a}.flip({d}, {e})", "{a}.unflatten({d}, (-1, 1))",
    "{a}.unflatten({d}, (1, -1))", "{a}.swapaxes({d}, {e})", "{a}.permute(*range({a}.dim())[::-1])", "{a}.view(-1)",
    "{a}.view({a}.shape[0], -1)", "{a}.reshape({a}.shape[-1], -1)", "{a}.contiguous()", "{a}.rot90(1, ({d}, {e}))",
    "{a}.contiguous(memory_format=torch.channels_last)", "{a}.to(memory_format=torch.channels_last)",
    "{a}.as_strided(({n},), (1,))", "{a}.as_strided((2, {n}), (0, 1))", "{a}.as_strided((1,), (2,), 1)",
    "{a}.index_select({d}, torch.tensor([0, 0]))", "{a}.gather({d}, torch.zeros_like({a}, dtype=torch.long))",
    "{a}.take_along_dim({a}.argsort({d}), {d})", "torch.take({a}, torch.tensor([0, -1]))", "{a}.diag_embed()",
    "{a}.masked_fill({a} > 0, 1)", "torch.atleast_2d({a})", "torch.hstack([{a}, {a}])", "torch.vstack([{a}, {a}])",
    "torch.dstack([{a}, {a}])", "{a}.broadcast_to(3, *{a}.shape)", "{a}.ravel()", "{a}.clone().view_as({a})",
    "{a}[torch.tensor([True] + [False] * ({a}.shape[0] - 1))]", "{a}[[True] + [False] * ({a}.shape[0] - 1)]",
    "torch.block_diag({a}, {a})", "{a}.diagonal_scatter(torch.zeros_like({a}.diagonal()))",
    "{a}.slice_scatter({a}[:1], 0, 0, 1)", "{a}.select_scatter({a}.select({d}, 0), {d}, -1)",
    "{a}.index_fill({d}, torch.tensor([0]), 0.5)", "{a}[..., :, 0]", "{a}[None]", "{a}[:, :, 0]", "{a}[0, ..., -1]",
    "{a}[[0, -1], [0, -1]]", "{a}[:, -1:]", "{a}.swapdims(0, -1)",
    "{a}.scatter({d}, torch.zeros_like({a}, dtype=torch.long), 0.5)", "torch.flipud({a})", "{a}.adjoint()",
    "{a}.scatter_add({d}, torch.zeros_like({a}, dtype=torch.long), {a})", "{a}.tensor_split((1,), {d})[0]",
    "{a}.scatter_reduce({d}, torch.zeros_like({a}, dtype=torch.long), {a}, 'amax')", "{a}.moveaxis(0, -1)",
    "{a}.index_add({d}, torch.tensor([0]), {a}.narrow({d}, 0, 1))",
    "{a}.index_copy({d}, torch.tensor([0]), {a}.narrow({d}, 0, 1))", "{a}.masked_select({a} == {a})",
    "torch.where({a} > 0, {a}, {a}.flip({d}))", "{a}.expand(*{a}.shape)", "{a}.squeeze((0, -1))",
    "{a}.detach().as_strided_scatter({a}.detach().flatten()[:1], (1,), (1,))", "{a}.detach()",
    "{a}.view_as({a}) * 1", "{a}.positive()",
    "{a}.index_put((torch.tensor([0]),), {a}[0])", "{a}.unsafe_chunk(2, {d})[0]",
    "{a}.split_with_sizes([1, {n} - 1], {d})[1]",
)  # fmt: skip


@proposal(8)
def move(s: Scene) -> None:
    a = s.pick(lambda t: t.dim() > 0) if s.chance(0.15) else s.floating(range(1, 6))
    d = s.dim(a)
    s.add(s.one_of(_MOVES).format(a=a, d=d, e=s.dim(a), n=s.shape(a)[d]))


@proposal(2)
def permute(s: Scene) -> None:
    a = s.floating(range(2, 6))
    axes = list(range(s.values[a].dim()))
    s.random.shuffle(axes)
    s.add(f"{a}.permute({', '.join(map(str, axes))})")


@proposal(2)
def reshape(s: Scene) -> None:
    """Propose other sizes with as many elements; a view where torch can give one."""
    a = s.floating()
    left = s.values[a].numel()
    sizes: list[int] = []
    while left > 1 and len(sizes) < 3:
        factor = s.one_of([n for n in range(1, left + 1) if left % n == 0 and n <= 24])
        sizes.append(factor)
        left //= factor
    sizes = [*sizes, -1] if s.chance(0.5) else [*sizes, left]
    s.add(f"{a}.{s.one_of(['reshape', 'reshape', 'view'])}({', '.join(map(str, sizes))})")


@proposal(2)
def pad(s: Scene) -> None:
    a = s.floating(range(1, 6))
    mode = s.one_of(["constant", "circular", "reflect", "replicate"])
    axes = 1 if mode == "constant" or s.values[a].dim() < 4 else 2
    amounts = ", ".join(str(s.one_of([0, 1, 1, 2])) for _ in range(2 * axes))
    s.add(f'F.pad({a}, ({amounts}), mode="{mode}")')


@proposal(2)
def join(s: Scene) -> None:
    """Propose two values side by side, or one stacked on the other."""
    a = s.floating(range(1, 5))
    same = s.shape(a)
    b = s.floating(where=lambda t: list(t.shape) == same) if s.chance(0.7) else s.parameter(same)
    d = s.dim(a)
    s.add(
        s.one_of(
            (
                f"torch.cat([{a}, {b}], {d})",
                f"torch.stack([{a}, {b}, {a}], {d})",
                f"torch.cat([{b}, {a}, {b}], {d})",
                f"torch.stack(({a}, {b}), -1).flatten(-2)",
                f"torch.hstack(({a}, {b}))",
            )
        )
    )


@proposal(1.5)
def several(s: Scene) -> None:
    """Propose operators of several results."""
    a = s.floating(range(1, 6))
    d = s.dim(a)
    n = s.shape(a)[d]
    if n < 2:
        raise Unfit
    s.add(
        s.one_of(
            (
                f"{a}.sort({d})",
                f"{a}.max({d})",
                f"{a}.split([1, {n - 1}], {d})",
                f"torch.var_mean({a}, {d})",
                f"{a}.topk(2, {d})",
                f"torch.chunk({a}, 2, {d})",
                f"torch.aminmax({a}, dim={d})",
                f"torch.frexp({a})" if s.chance(0.1) else f"{a}.cummin({d})",
                f"torch.tensor_split({a}, 2, {d})",
                f"{a}.min({d}, keepdim=True)",
                f"torch.std_mean({a}, {d}, keepdim=True)",
            )
        ),
        2,
    )


@proposal(2)
def product(s: Scene) -> None:
    """Propose matrix products in torch's spellings."""
    a = s.floating(range(1, 6))
    shape = s.shape(a)
    k, n = shape[-1], s.size()
    ways = [
        f"{a} @ {{{k}, {n}}}",
        f"F.linear({a}, {{{n}, {k}}})",
        f"F.linear({a}, {{{n}, {k}}}, {{{n}}})",
        f"torch.einsum('...i,ij->...j', {a}, {{{k}, {n}}})",
        f"{a} @ {{{k}}}",
        f"torch.matmul({{{n}, {k}}}, {a}.mT)",
        f"F.linear({a}, {{{n}, {k}}}.tanh())",
        f"F.bilinear({a}, {a}, {{2, {k}, {k}}})",
    ]
    tied = [m for m in s.members if m.text.endswith(f"nn.Linear({k}, {n})") or f"nn.Embedding({n}, {k}" in m.text]
    ways += [f"F.linear({a}, {member.name}.weight)" for member in tied] * 2
    if len(shape) == 2:
        ways += [
            f"torch.addmm({{{n}}}, {a}, {{{k}, {n}}})",
            f"torch.mm({a}, {{{k}, {n}}})",
            f"torch.einsum('ij,kj->ki', {a}, {{{n}, {k}}})",
            f"torch.einsum('ij,ij->i', {a}, {a})",
            f"torch.cdist({a}, {{{n}, {k}}})",
            f"torch.mv({a}, {{{k}}})",
            f"torch.outer({a}[0], {{{n}}})",
            f"torch.kron({a}, {{2, 2}})",
            f"torch.addmm({a}, {a}, {{{k}, {k}}}, alpha=0.5, beta=2)",
        ]
    if len(shape) == 3:
        ways += [
            f"torch.bmm({a}, {{{shape[0]}, {k}, {n}}})",
            f"torch.einsum('bij,bkj->bik', {a}, {a})",
            f"torch.baddbmm({a}, {{{shape[0]}, {shape[1]}, {n}}}, {{{shape[0]}, {n}, {k}}})",
            f"{a} @ {a}.transpose(1, 2)",
            f"torch.einsum('bij,jk->bki', {a}, {{{k}, {n}}})",
            f"torch.tensordot({a}, {{{k}, {n}}}, dims=1)",
        ]
    if len(shape) == 4:
        ways += [
            f"torch.einsum('abij,abkj->baik', {a}, {a})",
            f"{a} @ {a}.mT",
            f"torch.einsum('abij,jk->abik', {a}, {{{k}, {n}}})",
        ]
    s.add(_with_parameters(s, s.one_of(ways)))


def _with_parameters(s: Scene, text: str) -> str:
    """Replace ``{3, 4}`` in ``text`` by a parameter of that shape."""
    while "{" in text:
        start, end = text.index("{"), text.index("}")
        shape = [int(word) for word in text[start + 1 : end].split(",")]
        text = text[:start] + s.parameter(shape) + text[end + 1 :]
    return text


@proposal(0.7)
def cast_half(s: Scene) -> None:
    """Propose values of another floating dtype, and what is computed with them."""
    a = s.floating()
    s.add(s.one_of(("{a}.bfloat16()", "{a}.half()", "{a}.double()", "{a}.to(torch.bfloat16) + {a}")).format(a=a))


@proposal(1)
def lookup(s: Scene) -> None:
    """Propose rows of a value by computed indices."""
    i = s.integer(lambda t: t.dim() < 4)
    a = s.floating(range(1, 5))
    n = s.shape(a)[0]
    s.add(
        s.one_of(
            (
                f"{a}[{i}.abs() % {n}]",
                f"F.embedding({i}.abs() % {n}, {a})",
                f"{a}.index_select(0, {i}.flatten().abs() % {n})",
                f"torch.index_select({a}, 0, {i}.reshape(-1) % {n})",
                f"{a}[{i} % {n}, ...]",
                f"torch.take({a}, {i}.abs() % {n})",
                f"F.embedding_bag({i}.reshape(1, -1) % {n}, {a}, mode='mean')",
            )
        )
    )
