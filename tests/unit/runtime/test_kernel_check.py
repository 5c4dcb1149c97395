"""The kernel check refuses what computes otherwise, crashes or writes where it must not, and nothing that is right."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, packed_spec
from rdukit.pef.operators import GETITEM
from rdukit.pef.units import KernelVerdict, Outcome, Unit, unit_from_json, verdict_from_json
from rdukit_runtime.check import judge as judging
from rdukit_runtime.check.alternatives import Elsewhere
from rdukit_runtime.check.draws import ALL_SETS, InputSet, draw, draw_gradient, guard
from rdukit_runtime.check.exactness import adds_nothing, is_exact_on_whole_numbers, keeps_signs
from rdukit_runtime.check.judge import Side, find_all_roles
from rdukit_runtime.check.roles import InputRole, find_roles
from rdukit_runtime.engine.portable import build_portable
from support import shows

pytestmark = shows("native", "native-kernels")

ROWS, WIDTH = 6, 9


def kernel(
    nodes: Sequence[tuple[Any, ...]], outputs: Sequence[str], **inputs: tuple[str, tuple[int, ...]]
) -> KernelGraph:
    specs = tuple(packed_spec(name, dtype, shape) for name, (dtype, shape) in inputs.items())
    made = tuple(KernelNode(f"v{n}", op, tuple(args)) for n, (op, *args) in enumerate(nodes))
    return KernelGraph(specs, made, tuple(outputs))


#: A linear layer with tanh, and its backward on what it saved: its result.
FORWARD = kernel(
    [("aten.mm.default", Ref("x"), Ref("w")), ("aten.tanh.default", Ref("v0"))], ["v1"],
    x=("float32", (ROWS, WIDTH)), w=("float32", (WIDTH, 4)),
)  # fmt: skip
BACKWARD = kernel(
    [("aten.tanh_backward.default", Ref("g"), Ref("y")), ("aten.t.default", Ref("x")),
     ("aten.mm.default", Ref("v1"), Ref("v0"))],
    ["v2"], y=("float32", (ROWS, 4)), x=("float32", (ROWS, WIDTH)), g=("float32", (ROWS, 4)),
)  # fmt: skip
UNIT = Unit(FORWARD, BACKWARD, (("output", 0), ("input", 0), None))


def judge(unit: Unit, native: Side) -> KernelVerdict:
    """Judge with all sets: a busy machine must not choose fewer."""
    return judging.judge(unit, native, is_full=True)


def side(unit: Unit) -> Side:
    return Side(build_portable(unit.forward), None if unit.backward is None else build_portable(unit.backward))


def changed(graph: KernelGraph, position: int, op: str, *args: Any) -> KernelGraph:
    nodes = list(graph.nodes)
    nodes[position] = KernelNode(nodes[position].name, op, args or nodes[position].args)
    return replace(graph, nodes=tuple(nodes))


def test_what_computes_the_same_is_right() -> None:
    verdict = judge(UNIT, side(UNIT))
    assert (verdict.outcome, verdict.sets, verdict.dropped) == (Outcome.RIGHT, len(ALL_SETS), 0)


def test_rounding_in_another_order_is_right() -> None:
    def forward(inputs: Sequence[torch.Tensor], scalars: Any) -> Sequence[torch.Tensor]:
        x, w = inputs
        return [((x[:, :4] @ w[:4]) + (x[:, 4:] @ w[4:])).tanh()]

    assert judge(UNIT, Side(forward, side(UNIT).backward)).outcome is Outcome.RIGHT


@pytest.mark.parametrize(
    "damaged",
    [
        changed(FORWARD, 1, "aten.sigmoid.default"), changed(FORWARD, 1, "aten.sin.default"),
        changed(FORWARD, 1, "aten.atan.default"), changed(FORWARD, 1, "aten.relu.default"),
    ],
    ids=lambda graph: graph.nodes[1].op,
)  # fmt: skip
def test_another_function_is_refused(damaged: KernelGraph) -> None:
    verdict = judge(UNIT, Side(build_portable(damaged), side(UNIT).backward))
    assert verdict.outcome is Outcome.REFUSED and "output 0: " in verdict.reason and "seed" in verdict.reason


def damage(make: Callable[[Sequence[torch.Tensor]], torch.Tensor]) -> Side:
    """A side whose backward is right but for what ``make`` does to its result."""
    whole = side(UNIT)
    assert whole.backward is not None
    right = whole.backward

    def backward(inputs: Sequence[torch.Tensor], scalars: Any) -> Sequence[torch.Tensor]:
        return [make([*right(inputs, scalars), *inputs])]

    return Side(whole.forward, backward)


@pytest.mark.parametrize(
    "make",
    [
        lambda t: -t[0], lambda t: torch.zeros_like(t[0]), lambda t: t[0].roll(1, 0), lambda t: t[0].roll(1, 1),
        lambda t: t[0].bfloat16().float(), lambda t: t[0].nan_to_num(0.0), lambda t: t[0] * (1 + 1e-4),
        lambda t: torch.where(t[0] == t[0].max(), torch.zeros(()), t[0]), lambda t: t[0].double(), lambda t: t[0][:-1],
        lambda t: t[0].clamp(-3, 3), lambda t: t[0] + 1e-3,
    ],
    ids=["sign", "lost", "rows", "columns", "dtype of its numbers", "nan", "scale", "one element", "dtype", "shape",
         "clamped", "shifted"],
)  # fmt: skip
def test_a_damaged_gradient_is_refused(make: Callable[[Sequence[torch.Tensor]], torch.Tensor]) -> None:
    assert judge(UNIT, damage(make)).outcome is Outcome.REFUSED


def test_a_backward_is_judged_on_what_its_own_forward_saved() -> None:
    def forward(inputs: Sequence[torch.Tensor], scalars: Any) -> Sequence[torch.Tensor]:
        return [build_portable(FORWARD)(inputs, scalars)[0] * 2]

    def backward(inputs: Sequence[torch.Tensor], scalars: Any) -> Sequence[torch.Tensor]:
        y, x, g = inputs
        return [x.t() @ (g * (1 - (y / 2) ** 2))]

    verdict = judge(UNIT, Side(forward, backward))
    assert verdict.outcome is Outcome.REFUSED and verdict.reason.startswith("output 0")


def test_what_writes_to_an_input_or_beyond_it_is_refused() -> None:
    def writing(inputs: Sequence[torch.Tensor], scalars: Any) -> Sequence[torch.Tensor]:
        made = build_portable(FORWARD)(inputs, scalars)
        inputs[0][0, 0] += 1
        return made

    def beyond(inputs: Sequence[torch.Tensor], scalars: Any) -> Sequence[torch.Tensor]:
        made = build_portable(FORWARD)(inputs, scalars)
        inputs[0].as_strided((1,), (1,), inputs[0].storage_offset() + inputs[0].numel()).fill_(7.0)
        return made

    for forward in (writing, beyond):
        assert judge(UNIT, Side(forward, side(UNIT).backward)).outcome is Outcome.REFUSED


def test_a_result_in_the_memory_of_an_input_is_refused() -> None:
    graph = kernel([("aten.clone.default", Ref("x"))], ["v0"], x=("float32", (ROWS, WIDTH)))
    view = kernel([("aten.view.default", Ref("x"), [WIDTH, ROWS])], ["v0"], x=("float32", (ROWS, WIDTH)))
    verdict = judge(Unit(graph), Side(lambda inputs, scalars: [inputs[0]], None))
    assert verdict.outcome is Outcome.REFUSED and "shares memory with an input" in verdict.reason
    assert judge(Unit(view), side(Unit(view))).outcome is Outcome.RIGHT


def test_a_gradient_in_the_memory_of_what_arrives_is_refused() -> None:
    graph = kernel([("aten.clone.default", Ref("g"))], ["v0"], g=("float32", (ROWS,)))
    unit = Unit(kernel([("aten.neg.default", Ref("x"))], ["v0"], x=("float32", (ROWS,))), graph, (None,))
    damaged = Side(build_portable(unit.forward), lambda inputs, scalars: [inputs[0]])
    assert judge(unit, damaged).reason.startswith("output 1: it shares memory")


def test_a_result_that_is_laid_out_otherwise_is_refused() -> None:
    graph = kernel([("aten.neg.default", Ref("x"))], ["v0"], x=("float32", (ROWS, WIDTH)))
    verdict = judge(Unit(graph), Side(lambda inputs, scalars: [(-inputs[0]).t().contiguous().t()], None))
    assert verdict.outcome is Outcome.REFUSED and "strides (1, 6), not (9, 1)" in verdict.reason


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64"])
def test_large_whole_numbers_are_drawn_of_what_is_no_place(dtype: str) -> None:
    (above,) = (chosen for chosen in ALL_SETS if chosen.kind == "above")
    spec, most = packed_spec("x", dtype, (90,)), torch.iinfo(getattr(torch, dtype)).max
    drawn = draw(spec, None, above, 1)
    assert int(drawn.max()) == most and int(drawn.min()) >= -most
    assert int(draw(spec, InputRole("index", 7), above, 1).max()) < 7
    assert int(draw_gradient(spec, above, 1).max()) < 4


def test_the_place_in_a_pool_lies_in_what_was_pooled() -> None:
    graph = kernel(
        [("aten.max_pool2d_with_indices_backward.default", Ref("g"), Ref("x"), [2, 2], [2, 2], [0, 0], [1, 1], False,
          Ref("i"))],
        ["v0"], g=("float32", (3, 2, 2)), x=("float32", (3, 4, 5)), i=("int64", (3, 2, 2)),
    )  # fmt: skip
    assert find_roles(graph, {spec.name: spec.shape for spec in graph.inputs})["i"] == InputRole("index", 20)


def test_an_index_that_two_readers_take_is_legal_for_both() -> None:
    graph = kernel(
        [
            ("aten.embedding.default", Ref("w"), Ref("i")),
            ("aten.nll_loss_forward.default", Ref("x"), Ref("i"), None, 1, -100),
        ],
        ["v0"], w=("float32", (7, 3)), x=("float32", (ROWS, 5)), i=("int64", (ROWS,)),
    )  # fmt: skip
    assert find_roles(graph, {spec.name: spec.shape for spec in graph.inputs})["i"] == InputRole("index", 5)


def test_what_fails_is_refused_with_its_reason() -> None:
    def forward(inputs: Sequence[torch.Tensor], scalars: Any) -> Sequence[torch.Tensor]:
        raise RuntimeError("no such loop")

    assert "no such loop" in judge(UNIT, Side(forward, side(UNIT).backward)).reason


def test_inputs_that_the_portable_form_refuses_are_counted() -> None:
    graph = kernel([("aten.view.default", Ref("x"), [5])], ["v0"], x=("float32", (ROWS,)))
    verdict = judge(Unit(graph), side(Unit(graph)))
    assert (verdict.outcome, verdict.dropped) == (Outcome.NOT_JUDGED, len(ALL_SETS))


def test_the_place_of_the_largest_of_equal_numbers_counts() -> None:
    graph = kernel([("aten.argmax.default", Ref("x"), 1)], ["v0"], x=("float32", (ROWS, WIDTH)))

    def last(inputs: Sequence[torch.Tensor], scalars: Any) -> Sequence[torch.Tensor]:
        return [WIDTH - 1 - inputs[0].flip(1).argmax(1)]

    assert judge(Unit(graph), Side(last, None)).outcome is Outcome.REFUSED


def test_the_sign_of_zero_counts_where_nothing_is_added_up() -> None:
    graph = kernel([("aten.neg.default", Ref("x"))], ["v0"], x=("float32", (WIDTH,)))

    def subtracting(inputs: Sequence[torch.Tensor], scalars: Any) -> Sequence[torch.Tensor]:
        return [0 - inputs[0]]

    assert judge(Unit(graph), Side(subtracting, None)).outcome is Outcome.REFUSED
    assert keeps_signs(graph) and adds_nothing(graph) and is_exact_on_whole_numbers(graph)


def test_readers_say_what_inputs_may_hold() -> None:
    graph = kernel(
        [("aten.view.default", Ref("i"), [4]), ("aten.embedding.default", Ref("table"), Ref("v0")),
         ("aten.add.Tensor", Ref("var"), 1e-5), ("aten.rsqrt.default", Ref("v2")),
         ("aten.nll_loss_forward.default", Ref("logits"), Ref("y"), None, 1, -100)],
        ["v1", "v3", "v4"], i=("int64", (2, 2)), table=("float32", (7, 3)), var=("float32", (3,)),
        logits=("float32", (4, 5)), y=("int64", (4,)),
    )  # fmt: skip
    shapes = {spec.name: spec.shape for spec in graph.inputs}
    assert find_roles(graph, shapes) == {
        "i": InputRole("index", 7), "var": InputRole("positive"), "y": InputRole("index", 5, 0, -100),
    }  # fmt: skip
    assert find_all_roles(Unit(graph)) == find_roles(graph, shapes)


@pytest.mark.parametrize("chosen", ALL_SETS, ids=str)
def test_drawn_indices_are_legal_and_the_same_each_time(chosen: InputSet) -> None:
    spec = packed_spec("i", "int64", (50,))
    drawn = draw(spec, InputRole("index", 7, -7, -100), chosen, 3)
    legal = drawn[drawn != -100]
    assert int(legal.min()) >= -7 and int(legal.max()) == 6 and -100 in drawn and 0 in drawn and -1 in drawn
    assert torch.equal(drawn, draw(spec, InputRole("index", 7, -7, -100), chosen, 3))


def test_a_guarded_tensor_has_the_strides_of_the_plan() -> None:
    made = guard(torch.arange(6.0).reshape(2, 3), (1, 2))
    assert made.tensor.stride() == (1, 2) and made.is_whole()
    made.memory[-1] = 0
    assert not made.is_whole()


def test_units_and_verdicts_come_back_from_json() -> None:
    assert unit_from_json(UNIT.to_json()) == UNIT and len(UNIT.digest) == 64
    verdict = KernelVerdict(Outcome.REFUSED, "why", 3, 1)
    assert verdict_from_json(verdict.to_json()) == verdict
    with pytest.raises(ValueError, match="verdict"):
        verdict_from_json(b"[]")


def test_a_sum_that_cancels_may_be_off_by_the_rounding_of_what_it_adds_up() -> None:
    mean = Unit(kernel([("aten.mean.default", Ref("x"))], ["v0"], x=("float32", (200, 500))))

    def added_by_halves(inputs: Sequence[torch.Tensor], scalars: Any) -> list[torch.Tensor]:
        return [sum(part.sum() for part in inputs[0].flatten().split(50)) / inputs[0].numel()]  # type: ignore[list-item]

    assert judge(mean, Side(added_by_halves, None)).outcome is Outcome.RIGHT
    lost = Side(lambda inputs, scalars: [inputs[0][:-1].sum() / inputs[0].numel()], None)
    assert judge(mean, lost).outcome is Outcome.REFUSED


def test_whole_numbers_are_not_divided_by_zero() -> None:
    divided = kernel(
        [("aten.floor_divide.default", Ref("x"), Ref("y"))], ["v0"], x=("int32", (40,)), y=("int32", (40,))
    )
    roles = find_all_roles(Unit(divided))
    for chosen in ALL_SETS:
        assert bool((draw(divided.inputs[1], roles["y"], chosen, 1) != 0).all())
    assert judge(Unit(divided), side(Unit(divided))).sets == len(ALL_SETS)


def test_an_infinite_row_may_have_either_mean_of_a_layer_norm() -> None:
    normed = [("aten.native_layer_norm.default", Ref("x"), [WIDTH], None, None, 1e-5)]
    results = [(GETITEM, Ref("v0"), number) for number in range(3)]
    unit = Unit(kernel([*normed, *results], ["v1", "v2", "v3"], x=("float32", (ROWS, WIDTH))))

    def summing(inputs: Sequence[torch.Tensor], scalars: Any) -> list[torch.Tensor]:
        (x,) = inputs
        result, _, scale = torch.native_layer_norm(x, [WIDTH], None, None, 1e-5)
        return [result, x.mean(-1, keepdim=True), scale]

    def without_nan(inputs: Sequence[torch.Tensor], scalars: Any) -> list[torch.Tensor]:
        result, mean, scale = summing(inputs, scalars)
        return [result.nan_to_num(0.0), mean, scale]

    infinite = torch.tensor([[1.0] * (WIDTH - 1) + [float("inf")]])
    assert not torch.equal(summing([infinite], {})[1], build_portable(unit.forward)((infinite,), {})[1])
    assert judge(unit, Side(summing, None)).outcome is Outcome.RIGHT
    assert judge(unit, Side(without_nan, None)).outcome is Outcome.REFUSED


def test_squares_that_overflow_in_single_precision_only_may_be_right() -> None:
    normed = [("aten.native_layer_norm.default", Ref("x"), [WIDTH], None, None, 1e-5), (GETITEM, Ref("v0"), 0)]
    unit = Unit(kernel(normed, ["v1"], x=("float32", (ROWS, WIDTH))))

    def in_double(inputs: Sequence[torch.Tensor], scalars: Any) -> list[torch.Tensor]:
        return [torch.nn.functional.layer_norm(inputs[0].double(), [WIDTH]).float()]

    def halved(inputs: Sequence[torch.Tensor], scalars: Any) -> list[torch.Tensor]:
        (made,), (x,) = in_double(inputs, scalars), inputs
        return [torch.where(x.abs().amax(-1, keepdim=True) > 1e19, made / 2, made)]

    large = torch.full((1, WIDTH), 1e20)
    large[0, 0] = -1e20
    assert build_portable(unit.forward)((large,), {})[0].count_nonzero() == 0
    assert judge(unit, Side(in_double, None)).outcome is Outcome.RIGHT
    assert judge(unit, Side(halved, None)).outcome is Outcome.REFUSED


@pytest.mark.parametrize("width", [3, WIDTH])
def test_a_row_whose_variance_overflows_may_become_the_norm_of_zeros(width: int) -> None:
    x = torch.full((2, width), 1e20)
    x[:, 0] = -1e20
    x[1] = torch.arange(width)
    weight, bias = torch.full((width,), 2.0), torch.full((width,), 0.5)
    with Elsewhere():
        result, mean, scale = torch.native_layer_norm(x, [width], weight, bias, 1e-5)
        given = (torch.ones_like(x), x, [width], mean, scale, weight, bias, [True, True, True])
        gradients = torch.ops.aten.native_layer_norm_backward(*given)
    of_row = torch.native_layer_norm(x[1:], [width], weight, bias, 1e-5)[0]
    assert torch.equal(result, torch.cat([bias[None], of_row]))
    assert all(bool(each.isfinite().all()) for each in gradients)
    assert not gradients[0][0].any()


def test_a_narrow_erf_may_keep_small_numbers_that_torch_loses() -> None:
    small = [("aten.mul.Tensor", Ref("x"), Ref("x")), ("aten.erf.default", Ref("v0"))]
    unit = Unit(kernel(small, ["v1"], x=("bfloat16", (ROWS, WIDTH))))
    assert build_portable(unit.forward)((torch.full((1,), 1e-4, dtype=torch.bfloat16),), {})[0] == 0

    def precise(inputs: Sequence[torch.Tensor], scalars: Any) -> list[torch.Tensor]:
        return [torch.erf((inputs[0] * inputs[0]).double()).bfloat16()]

    def halved(inputs: Sequence[torch.Tensor], scalars: Any) -> list[torch.Tensor]:
        (made,) = precise(inputs, scalars)
        return [torch.where(made < 1e-6, made / 2, made)]

    assert judge(unit, Side(precise, None)).outcome is Outcome.RIGHT
    assert judge(unit, Side(halved, None)).outcome is Outcome.REFUSED


def test_a_batch_norm_may_subtract_the_mean_before_an_infinite_weight_multiplies() -> None:
    options = (None, None, True, 0.1, 1e-5)
    normed = [("aten.native_batch_norm.default", Ref("x"), Ref("w"), Ref("b"), *options), (GETITEM, Ref("v0"), 0)]
    unit = Unit(kernel(normed, ["v1"], x=("float32", (ROWS, 4)), w=("float32", (4,)), b=("float32", (4,))))

    def centered(inputs: Sequence[torch.Tensor], scalars: Any) -> list[torch.Tensor]:
        x, w, b = inputs
        return [torch.native_batch_norm(x, None, None, *options)[0] * w + b]

    def positive(inputs: Sequence[torch.Tensor], scalars: Any) -> list[torch.Tensor]:
        (made,) = centered(inputs, scalars)
        return [torch.where(made.isinf(), made.abs(), made)]

    assert judge(unit, Side(centered, None)).outcome is Outcome.RIGHT
    assert judge(unit, Side(positive, None)).outcome is Outcome.REFUSED


def test_weights_whose_highest_score_is_rounded_apart_are_refused() -> None:
    scores = [("aten.mm.default", Ref("x"), Ref("w")), ("aten.mul.Tensor", Ref("v0"), 0.3)]
    nodes = [*scores, ("aten._softmax.default", Ref("v1"), -1, False)]
    unit = Unit(kernel(nodes, ["v2"], x=("float32", (32, 32)), w=("float32", (32, 32))))

    def weights(inputs: Sequence[torch.Tensor], scalars: Any) -> list[torch.Tensor]:
        made = inputs[0] @ inputs[1]
        highest = (made.amax(-1, keepdim=True) * 0.3).double()
        powers = (made.double() * 0.3 - highest).float().exp()
        return [powers / powers.sum(-1, keepdim=True)]

    verdict = judge(unit, Side(weights, None))
    assert verdict.outcome is Outcome.REFUSED and "uneven" in verdict.reason


@pytest.mark.parametrize(("groups", "stride", "dilation"), [(1, 1, 1), (2, 2, 1), (1, 1, 2)])
def test_a_convolution_may_or_may_not_multiply_padding(groups: int, stride: int, dilation: int) -> None:
    how = ([stride, stride], [2, 2], [dilation, dilation], False, [0, 0], groups)
    convolved = [("aten.convolution.default", Ref("x"), Ref("w"), Ref("b"), *how)]
    shapes = {"x": ("float32", (2, 4, 6, 5)), "w": ("float32", (4, 4 // groups, 3, 2)), "b": ("float32", (4,))}
    unit = Unit(kernel(convolved, ["v0"], **shapes))

    def padded(inputs: Sequence[torch.Tensor], scalars: Any) -> list[torch.Tensor]:
        x, w, bias = inputs
        wide = torch.nn.functional.pad(x, (2, 2, 2, 2))
        return [torch.nn.functional.conv2d(wide, w, bias, stride, 0, dilation, groups)]

    def inside(inputs: Sequence[torch.Tensor], scalars: Any) -> list[torch.Tensor]:
        (made,), (x, w, bias) = padded(inputs, scalars), inputs
        is_read = torch.nn.functional.pad(torch.ones_like(x), (2, 2, 2, 2))
        wrong = (~w.isfinite()).float()
        touched = torch.nn.functional.conv2d(is_read, wrong, None, stride, 0, dilation, groups) > 0.5
        without = torch.where(w.isfinite(), w, 0.0)
        return [torch.where(touched, made, padded([x, without, bias], scalars)[0])]

    def lost(inputs: Sequence[torch.Tensor], scalars: Any) -> list[torch.Tensor]:
        return [inside(inputs, scalars)[0].nan_to_num(0.5)]

    unequal = torch.randn(2, 4, 6, 5), torch.randn(4, 4 // groups, 3, 2), torch.zeros(4)
    unequal[1][0, 0, 0, 0] = float("nan")
    assert not torch.equal(padded(unequal, {})[0].isnan(), inside(unequal, {})[0].isnan())
    for form in (padded, inside):
        assert judge(unit, Side(form, None)).outcome is Outcome.RIGHT
    assert judge(unit, Side(lost, None)).outcome is Outcome.REFUSED


def test_attention_may_leave_out_values_without_weight_and_keep_nan() -> None:
    attended = [("aten._scaled_dot_product_flash_attention_for_cpu.default", Ref("q"), Ref("k"), Ref("v"), 0.0, True)]
    shapes = dict.fromkeys("qkv", ("float32", (1, 2, 6, 5)))
    unit = Unit(kernel([*attended, (GETITEM, Ref("v0"), 0)], ["v1"], **shapes))

    def plain(inputs: Sequence[torch.Tensor], scalars: Any) -> list[torch.Tensor]:
        q, k, v = inputs
        hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
        scores = (q @ k.mT / 5**0.5).masked_fill(hidden, float("-inf"))
        weights = scores.softmax(-1).masked_fill((scores == float("-inf")).all(-1, keepdim=True), 0.0)[..., None]
        return [(weights * v[..., None, :, :]).masked_fill(weights == 0, 0.0).sum(-2)]

    def lost(inputs: Sequence[torch.Tensor], scalars: Any) -> list[torch.Tensor]:
        return [plain(inputs, scalars)[0].nan_to_num(0.5)]

    assert judge(unit, Side(plain, None)).outcome is Outcome.RIGHT
    assert judge(unit, Side(lost, None)).outcome is Outcome.REFUSED


@pytest.mark.parametrize(
    ("op", "middle"), [("aten.elu_backward.default", (1.0, 1.0, 1.0, False)), ("aten.hardswish_backward.default", ())]
)
def test_a_gradient_at_nan_may_be_what_torch_makes_of_it_in_either_place(op: str, middle: tuple[Any, ...]) -> None:
    unit = Unit(kernel([(op, Ref("g"), *middle, Ref("x"))], ["v0"], g=("float32", (3,)), x=("float32", (3,))))
    portable = build_portable(unit.forward)

    def always_nan(inputs: Sequence[torch.Tensor], scalars: Any) -> list[torch.Tensor]:
        (made,) = portable(tuple(inputs), scalars)
        assert made is not None
        return [torch.where(inputs[1].isnan(), inputs[1], made)]

    def lost(inputs: Sequence[torch.Tensor], scalars: Any) -> list[torch.Tensor]:
        (made,) = always_nan(inputs, scalars)
        return [torch.where(inputs[0].isnan(), 0.0, made)]

    assert judge(unit, Side(always_nan, None)).outcome is Outcome.RIGHT
    assert judge(unit, Side(lost, None)).outcome is Outcome.REFUSED


def test_places_that_are_computed_from_whole_inputs_are_judged() -> None:
    graph = kernel(
        [("aten.mul.Tensor", Ref("row"), 48), ("aten.add.Tensor", Ref("v0"), Ref("place")),
         ("aten.index_copy.default", Ref("x"), 0, Ref("v1"), Ref("y"))],
        ["v2"], row=("int64", (2,)), place=("int64", (2,)), x=("float32", (144, 3)), y=("float32", (2, 3)),
    )  # fmt: skip

    def misplaced(inputs: Sequence[torch.Tensor], scalars: Any) -> list[torch.Tensor]:
        row, place, x, y = inputs
        return [x.index_copy(0, row * 47 + place, y)]

    verdict = judge(Unit(graph), side(Unit(graph)))
    assert (verdict.outcome, verdict.dropped) == (Outcome.RIGHT, 0)
    assert judge(Unit(graph), Side(misplaced, None)).outcome is Outcome.REFUSED


@pytest.mark.parametrize(("step_s", "outcome", "sets"), [(3.0, Outcome.RIGHT, 1), (11.0, Outcome.NOT_JUDGED, 0)])
def test_a_section_that_takes_seconds_is_judged_by_one_set_and_a_longer_one_by_none(
    step_s: float, outcome: Outcome, sets: int
) -> None:
    ticks = count(0.0, step_s)
    verdict = judging.judge(UNIT, side(UNIT), clock=lambda: next(ticks))
    assert (verdict.outcome, verdict.sets) == (outcome, sets)
