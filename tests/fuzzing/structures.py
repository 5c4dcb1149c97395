"""Proposals for a step, continued: layers, attention, losses; writes in place, state, regions, custom functions."""

import torch

from fuzzing.proposals import proposal
from fuzzing.scene import Scene, Unfit


@proposal(2)
def layer(s: Scene) -> None:
    """Propose a layer over the last axis, or over channels."""
    a = s.floating(range(1, 6))
    shape = s.shape(a)
    k, n = shape[-1], s.size()
    ways = [
        f"nn.Linear({k}, {n})",
        f"nn.Linear({k}, {n}, bias=False)",
        f"nn.LayerNorm({k})",
        "nn.PReLU()",
        "nn.Identity()",
        f"nn.RMSNorm({k})",
        f"nn.LayerNorm({k}, elementwise_affine=False)",
        f"nn.Sequential(nn.Linear({k}, {n}), nn.ReLU(inplace=True), nn.Linear({n}, {k}))",
        f"nn.Sequential(nn.Linear({k}, {n}), nn.Dropout(0.3), nn.LayerNorm({n})).eval()",
        f"torch.nn.utils.parametrizations.weight_norm(nn.Linear({k}, {n}))",
        "nn.Dropout(0.3).eval()",
    ]
    if len(shape) in {3, 4, 5}:
        dims, c = len(shape) - 2, shape[1]
        norm = f"BatchNorm{dims}d"
        ways += [
            f"nn.{norm}({c})",
            f"nn.GroupNorm({c}, {c})",
            f"nn.GroupNorm(1, {c})",
            f"nn.InstanceNorm{dims}d({c}, affine=True)",
            f"nn.{norm}({c}, momentum=0.3)",
            f"nn.{norm}({c}, track_running_stats=False)",
            f"nn.PReLU({c})",
            f"nn.{norm}({c}, affine=False)",
            f"nn.{norm}({c}).eval()",
        ]
    if len(shape) == 2:
        ways += [f"nn.BatchNorm1d({k})", f"nn.BatchNorm1d({k}, momentum=None)"]
    called = [m.name for m in s.members if m.name.startswith("self.m")]
    m = s.one_of(called) if called and s.chance(0.3) else s.layer(s.one_of(ways))
    s.add(f"{m}({a})")


@proposal(2)
def convolution(s: Scene) -> None:
    a = s.floating((3, 4, 5))
    shape = s.shape(a)
    dims, c = len(shape) - 2, shape[1]
    kernel = tuple(s.one_of([1, 2, 3]) for _ in range(dims))
    groups = c if s.chance(0.2) else 1
    n = c * s.one_of([1, 2]) if groups > 1 else s.size()
    if s.chance(0.25):
        text = f"nn.ConvTranspose{dims}d({c}, {n}, {kernel}, stride={s.one_of([1, 2])}, groups={groups})"
    else:
        mode = s.one_of(["zeros", "zeros", "circular", "reflect", "replicate"])
        padding = tuple(s.one_of([0, 1]) for _ in range(dims)) if s.chance(0.6) else 0
        stride, dilation = s.one_of([1, 1, 2]), s.one_of([1, 1, 2])
        text = (
            f"nn.Conv{dims}d({c}, {n}, {kernel}, stride={stride}, padding={padding}, dilation={dilation}, "
            f"groups={groups}, bias={s.chance(0.6)}, padding_mode={mode!r})"
        )
    s.add(f"{s.layer(text)}({a})")


@proposal(1.5)
def pooling(s: Scene) -> None:
    a = s.floating((3, 4, 5))
    dims = len(s.shape(a)) - 2
    k = s.one_of([1, 2, 3])
    linear = ["linear", "bilinear", "trilinear"][dims - 1]
    s.add(
        s.one_of(
            (
                f"F.max_pool{dims}d({a}, {k}, stride={s.one_of([1, 2])})",
                f"F.avg_pool{dims}d({a}, {k})",
                f"F.adaptive_avg_pool{dims}d({a}, 1)",
                f"F.adaptive_max_pool{dims}d({a}, 1)",
                f"F.adaptive_avg_pool{dims}d({a}, 2)",
                f"F.avg_pool{dims}d({a}, 2, stride=1, padding=1, count_include_pad=False)",
                f"F.max_pool{dims}d({a}, 2, padding=1)",
                f"F.interpolate({a}, scale_factor=2)",
                f"F.interpolate({a}, scale_factor=2, mode={linear!r})",
                f"F.interpolate({a}, size=3, mode={linear!r}, align_corners=True)",
                f"F.max_pool{dims}d({a}, 2, return_indices=True)[0]",
                f"F.lp_pool{min(dims, 2)}d({a}, 2, 2)",
            )
            + (
                (
                    f"F.unfold({a}, 2)",
                    f"F.fold(F.unfold({a}, 2), {a}.shape[2:], 2)",
                    f"F.pixel_shuffle({a}, 2)",
                    f"F.pixel_unshuffle({a}, 2)",
                    f"F.channel_shuffle({a}, 2)",
                    f"F.interpolate({a}, scale_factor=1.5, mode='bicubic')",
                )
                if dims == 2
                else ()
            )
        )
    )


@proposal(1)
def embedding(s: Scene) -> None:
    i = s.integer(lambda t: t.dim() < 4)
    rows, width = s.size() + 1, s.size()
    padding = s.one_of(["", "", f", padding_idx={s.one_of([0, -1])}"])
    s.add(f"{s.layer(f'nn.Embedding({rows}, {width}{padding})')}({i}.abs() % {rows})")


@proposal(1)
def attention(s: Scene) -> None:
    """Propose queries, keys and values cut out of one projection in one of the ways that models have."""
    a = s.floating((3,))
    b, length, width = s.shape(a)
    heads, size = s.one_of([1, 2, 3, 4]), s.one_of([2, 3, 4, 8])
    way = s.one_of(["thirds", "groups", "module", "chunk"])
    if way == "module":
        n = s.one_of([h for h in (1, 2, 3, 4) if width % h == 0])
        m = s.layer(f"nn.MultiheadAttention({width}, {n}, batch_first=True)")
        s.add(f"{m}({a}, {a}, {a}{s.one_of(['', ', need_weights=False', ', average_attn_weights=False'])})[0]")
        return
    mask = s.one_of(
        [
            "",
            ", is_causal=True",
            f", attn_mask=torch.ones({length}, {length}, dtype=torch.bool).tril()",
            f", attn_mask={s.parameter((length, length))}",
            ", scale=0.3",
        ]
    )
    if way == "groups":
        (f,) = s.add(
            f"{s.layer(f'nn.Linear({width}, {(heads + 2) * size})')}({a}).view({b}, {length}, {heads + 2}, {size})"
        )
        index = s.one_of(
            [
                ("[..., :-2, :]", "[..., [-2], :]", "[..., [-1], :]"),
                ("[..., :-2, :]", "[..., -2:-1, :]", "[..., -1:, :]"),
            ]
        )
        q, k, v = (s.add(f"{f}{part}.transpose(1, 2)")[0] for part in index)
        if s.chance(0.5):
            k, v = (s.add(f"{part}.expand({b}, {heads}, {length}, {size})")[0] for part in (k, v))
    elif way == "chunk":
        (f,) = s.add(
            f"{s.layer(f'nn.Linear({width}, {3 * heads * size})')}({a}).view({b}, {length}, {heads}, 3 * {size})"
        )
        q, k, v = s.add(f"{f}.transpose(1, 2).chunk(3, -1)", 3)
    else:
        (f,) = s.add(f"{s.layer(f'nn.Linear({width}, {3 * heads * size}, bias=False)')}({a})")
        q, k, v = s.add(f"{f}.reshape({b}, {length}, 3, {heads}, {size}).permute(2, 0, 3, 1, 4)", 3)
    if s.chance(0.6):
        (made,) = s.add(f"F.scaled_dot_product_attention({q}, {k}, {v}{mask})")
    else:
        (scores,) = s.add(f"{q} @ {k}.transpose(-2, -1) / {size} ** 0.5")
        (made,) = s.add(
            f"{scores}.masked_fill(torch.ones({length}, {length}).triu(1) > 0, float('-inf')).softmax(-1) @ {v}"
        )
    s.add(f"{made}.transpose(1, 2).reshape({b}, {length}, -1)")


@proposal(0.4)
def recurrent(s: Scene) -> None:
    a = s.floating((3,))
    k, n = s.shape(a)[-1], s.size()
    m = s.layer(
        f"nn.{s.one_of(['LSTM', 'GRU', 'RNN'])}({k}, {n}, batch_first={s.chance(0.5)}, bidirectional={s.chance(0.3)})"
    )
    s.add(f"{m}({a})[0]")


@proposal(1)
def loss(s: Scene) -> None:
    """Propose losses against labels or numbers, with and without reduction."""
    kind = s.one_of(["none", "mean", "mean", "sum"])
    if s.chance(0.5):
        a = s.floating((2, 3, 4))
        classes = s.shape(a)[1]
        rest = [size for axis, size in enumerate(s.shape(a)) if axis != 1]
        y = s.input(f"torch.randint(0, {classes}, {tuple(rest)})")
        s.add(
            s.one_of(
                (
                    f"F.cross_entropy({a}, {y}, reduction={kind!r})",
                    f"F.cross_entropy({a}, {y}, label_smoothing=0.1, reduction={kind!r})",
                    f"F.nll_loss({a}.log_softmax(1), {y}, reduction={kind!r})",
                    f"F.cross_entropy({a}, {y}, ignore_index=0, reduction='sum')",
                    f"F.cross_entropy({a}, {a}.detach().softmax(1), reduction={kind!r})",
                    f"F.cross_entropy({a}, {y}, weight=torch.arange(1.0, {classes + 1}), reduction={kind!r})",
                    f"F.multi_margin_loss({a}, {y}, reduction={kind!r})",
                )
            )
        )
        return
    a = s.floating(range(1, 5))
    b = s.floating(where=lambda t: list(t.shape) == s.shape(a)) if s.chance(0.5) else s.parameter(s.shape(a))
    s.add(
        s.one_of(
            (
                f"F.mse_loss({a}, {b}, reduction={kind!r})",
                f"F.l1_loss({a}, {b}, reduction={kind!r})",
                f"F.huber_loss({a}, {b}, reduction={kind!r})",
                f"F.smooth_l1_loss({a}, {b}, reduction={kind!r}, beta=0.5)",
                f"F.binary_cross_entropy_with_logits({a}, {b}.sigmoid(), reduction={kind!r})",
                f"F.kl_div({a}.log_softmax(-1), {b}.softmax(-1), reduction={kind!r})",
                f"F.poisson_nll_loss({a}.clamp(max=1), {b}.abs(), reduction={kind!r})",
                f"F.binary_cross_entropy({a}.sigmoid(), {b}.detach().sigmoid(), reduction={kind!r})",
                f"F.soft_margin_loss({a}, {b}.sign(), reduction={kind!r})",
                f"F.gaussian_nll_loss({a}, {b}.detach(), torch.ones_like({a}), reduction={kind!r})",
                f"F.cosine_similarity({a}, {b}, dim=-1)",
                f"F.margin_ranking_loss({a}, {b}, {b}.detach().sign(), margin=0.2, reduction={kind!r})",
                f"F.pairwise_distance({a}, {b})",
                f"F.hinge_embedding_loss({a}, {b}.detach().sign(), reduction={kind!r})",
            )
        )
    )


#: Statements that overwrite ``{a}``; ``{b}`` is a value of its shape.
_WRITES = (
    "{a}.add_({b})", "{a}.mul_(0.5)", "{a}.sub_({b}, alpha=0.5)", "{a} += {b}", "{a} *= 2", "{a}.relu_()",
    "{a}.clamp_(-1, 1)", "{a}[0] = 0.5", "{a}[0] = {b}[0]", "{a}[..., 0] = {b}[..., 0] * 2",
    "{a}[..., 1:] = {b}[..., :-1]", "{a}[{a} > 0.5] = 0.25", "{a}[..., -1:] += 1", "{a}.transpose(0, -1)[0].mul_(2)",
    "{a}.view(-1)[0].add_(1)", "{a}.select(-1, 0).zero_()", "{a}.copy_({b})", "{a}.masked_fill_({b} > 0, 0.5)",
    "{a}.fill_(0.3)", "{a}.zero_()", "{a}.tanh_()", "{a}.index_fill_(0, torch.tensor([0]), 0.5)",
    "{a}.index_add_(0, torch.tensor([0]), {b}[:1])", "{a}.index_copy_(0, torch.tensor([0]), {b}[:1])", "{a}.exp_()",
    "{a}.neg_()", "{a}.scatter_(0, torch.zeros_like({a}, dtype=torch.long), 0.5)", "{a}[[0, -1]] = {b}[[0, 0]]",
    "{a}.diagonal().add_(1)", "{a}.index_put_((torch.tensor([0]),), {b}[0], accumulate=True)",
    "{a}[-1, ..., 0] = 3.0", "{a}.sigmoid_()", "{a}[::2] -= 1", "{a}.flatten()[0] = 7.0",
    "{a}.unsqueeze(0)[0, 0] = 1.0", "{a}.lerp_({b}, 0.5)", "{a}.addcmul_({b}, {b})", "{a}.t_()", "{a}.div_(2)",
    "{a}.squeeze_()", "{a}.unsqueeze_(0)", "{a}.transpose_(0, -1)", "F.relu({a}, inplace=True)",
    "F.leaky_relu_({a}, 0.1)", "{a}.narrow(0, 0, 1).copy_({b}.narrow(0, 0, 1))", "{a}.chunk(2)[0].mul_(3)",
    "{a}.split(1)[-1].zero_()", "{a}.unbind(0)[0].add_({b}[0])", "{a}.expand(2, *{a}.shape)[0].add_(0)",
    "{a}[..., None, 0] = 2.0", "{a}[:, 0], {a}[:, -1] = {b}[:, -1], {b}[:, 0]", "{a}.T[0] = 1.5",
    "{a}.as_strided((1,), (1,)).fill_(1.0)", "{a}.masked_scatter_({b} > 0, {b})",
    "{a}.movedim(0, -1)[..., 0].sub_({b}[0])", "{a}.cumsum_(0)", "{a}.pow_(2)",
    "{a}.scatter_add_(0, torch.zeros_like({a}, dtype=torch.long), {b})", "{a}.detach().mul_(2)",
    "{a}.swapaxes(0, -1)[-1] = 0.1", "{a}.unfold(0, 1, 1)[0] += 1", "{a}.tril_()", "{a}.round_()", "{a}.abs_()",
)  # fmt: skip


@proposal(4)
def write(s: Scene) -> None:
    """Propose in-place operators on results, and on views of them while both are used."""
    a = s.floating(range(1, 5), lambda t: not t.is_leaf or not t.requires_grad)
    if s.chance(0.5):
        (a,) = s.add(
            s.one_of(
                ("{a}.clone()", "{a} * 2", "{a} + 0", "torch.zeros_like({a})", "torch.ones({a}.shape)", "{a}.relu()")
            ).format(a=a)
        )
        if s.chance(0.3):
            (view,) = s.add(
                s.one_of(
                    (
                        "{a}[0]",
                        "{a}.view(-1)",
                        "{a}.transpose(0, -1)",
                        "{a}[..., 1:]",
                        "{a}.t()",
                        "{a}.unsqueeze(0)",
                        "{a}[:, 0]",
                        "{a}.narrow(0, 0, 1)",
                        "{a}.flatten()",
                        "{a}.reshape(-1)",
                        "{a}.detach()",
                        "{a}.contiguous()",
                        "{a}.to(torch.float32)",
                        "{a}.expand_as({a})",
                        "{a}.movedim(0, -1)",
                        "{a}.diagonal()",
                        "{a}.squeeze()",
                        "{a}.unfold(0, 1, 1)",
                        "{a}.as_strided((1, 2), (1, 1))",
                        "{a}.type_as({a})",
                        "{a}.unbind(0)[-1]",
                        "{a}.chunk(2, -1)[0]",
                        "{a}.unflatten(0, (-1, 1))",
                        "F.dropout({a}, 0.2, training=False)",
                        "nn.Identity()({a})",
                        "{a}.T",
                    )
                ).format(a=a)
            )
            a = s.one_of([a, view, view])
    shape = s.shape(a)
    if not a.startswith("v") and s.chance(0.9):
        raise Unfit
    memory = s.values[a].untyped_storage().data_ptr()  # what overlaps is read while it is written

    def fits(value: torch.Tensor) -> bool:
        return list(value.shape) == shape and value.untyped_storage().data_ptr() != memory

    b = s.floating(where=fits) if s.chance(0.6) else s.parameter(shape)
    for _ in range(s.one_of([1, 1, 2])):
        s.add(s.one_of(_WRITES).format(a=a, b=b), 0)
    if s.chance(0.5):
        s.add(f"{a} * 1.5")


@proposal(2)
def state(s: Scene) -> None:
    """Propose buffers that forward changes, in place or by assignment, and reads before or after."""
    a = s.floating(range(1, 4))
    shape = s.shape(a)
    mean = f"{a}.detach().mean(0)"
    known = [n for n, t in s.values.items() if n.startswith("self.b") and list(t.shape) == shape[1:]]
    b = s.one_of(known) if known and s.chance(0.5) else s.buffer(shape[1:])
    if s.chance(0.4):
        s.add(f"{a} - {b}")
    s.add(
        s.one_of(
            (
                "{b}.add_({m})",
                "{b}.mul_(0.9).add_({m}, alpha=0.1)",
                "{b}.copy_({m})",
                "{b} = 0.5 * {b} + {m}",
                "{b} = {m}",
                "{b} += {m}",
                "{b} = {b} + 1",
                "{b}.lerp_({m}, 0.3)",
                "{b}[0] = {m}[0]",
                "{b}[..., 0] += 1",
                "{b} = {b}.roll(1, 0)",
                "{b}.zero_()",
                "{b}.view(-1)[0].add_(2)",
                "{b} = torch.cat([{b}[1:], {m}[:1]])",
                "{b}.data = {m}",
                "{b}.fill_(0.5)",
                "{b} = {b} * 0.9 + ({m} * 0.1).detach()",
                "{b}[:-1] = {b}[1:].clone()",
            )
        ).format(b=b, m=mean),
        0,
    )
    if s.chance(0.6):
        s.add(s.one_of((f"{a} * {b}", f"{a} + {b}.detach()", f"{a} - {b}.mean()", f"{b}.clone()")))


@proposal(0.7)
def counter(s: Scene) -> None:
    """Propose a buffer of integers, or a plain number, that counts calls."""
    b = s.buffer([s.one_of([1, 2])], ", dtype=torch.long")
    s.add(s.one_of(("{b}.add_(1)", "{b} += 1", "{b} = {b} + 1", "{b}[0] += 2")).format(b=b), 0)
    if s.chance(0.5):
        a = s.floating(range(1, 4))
        s.add(f"{a} * {b}[0]")


@proposal(1)
def own_function(s: Scene) -> None:
    a = s.floating()
    which = s.one_of(["straight", "reverse", "product", "saved"])
    if which == "product":
        b = s.floating(where=lambda t: list(t.shape) == s.shape(a)) if s.chance(0.5) else s.parameter(s.shape(a))
        s.add(f"Product.apply({a}, {b})", 2)
    else:
        s.add(
            {
                "straight": f"StraightThrough.apply({a})",
                "reverse": f"Reverse.apply({a}, 0.7)",
                "saved": f"SavedResult.apply({a})",
            }[which]
        )


@proposal(0.3)
def rare(s: Scene) -> None:
    """Propose hooks, checkpoints and gradients inside forward."""
    a = s.floating()
    way = s.one_of(["hook", "checkpoint", "grad", "enable", "vmap"])
    if way == "hook":
        (v,) = s.add(f"{a} * 2")
        s.add(f"{v}.register_hook(lambda grad: grad * 3)", 0)
        s.add(f"{v} + 1")
    elif way == "checkpoint":
        s.add(f"torch.utils.checkpoint.checkpoint(torch.tanh, {a}, use_reentrant=False)")
    elif way == "grad":
        s.add(f"torch.func.grad(lambda t: t.tanh().sum())({a})")
    elif way == "vmap":
        s.add(f"torch.func.vmap(lambda t: t.tanh() * 2)({a})")
    else:
        s.add(f"torch.autograd.grad({a}.tanh().sum(), {a}, create_graph=True)[0]")


#: What opens a block. Loops repeat their lines; conditions hold.
BLOCKS = (
    "with torch.no_grad():", "with torch.no_grad():", "with torch.enable_grad():",
    "with torch.set_grad_enabled(False):", "for _ in range(2):", "for _ in range(3):", "if self.training:",
    "if {a}.shape[0] > 0:", "if {a}.dim() >= 1:", "with torch.inference_mode(False):",
    "with torch.autograd.profiler.record_function('block'):", "if {a}.requires_grad or True:",
    "with torch.autocast('cpu', enabled=False):", "for _ in [None]:",
)  # fmt: skip
