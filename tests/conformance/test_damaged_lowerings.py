"""The kernel check finds damaged lowerings: damage of three kinds is done to kernels, and what is missed is named.

At graph level an operator is another; at the level of saved values a forward saves what its backward does not expect,
or a gradient is lost; a reduction begins, adds up or ends wrongly, or a result lies in the wrong memory. Kinds were
chosen before what the check can do was considered. ``test_damaged_code.py`` damages C++.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, packed_spec
from rdukit.pef.units import Outcome, Unit
from rdukit_runtime.check.judge import Side, judge
from rdukit_runtime.engine.portable import build_portable
from support import shows

pytestmark = [
    shows("native", "native-kernels"),
    pytest.mark.long,
]

#: Damage that the check does not find, and why (``docs/native-kernels.md``).
MISSED = {
    "one in a million": "no drawn number is above 1e6 and below 9e6",
    "infinite gradient is large": "rounding decides more than a hundredth of the elements",
}


def kernel(nodes: list[tuple[Any, ...]], outputs: list[str], **inputs: tuple[str, tuple[int, ...]]) -> KernelGraph:
    specs = tuple(packed_spec(name, dtype, shape) for name, (dtype, shape) in inputs.items())
    made = tuple(KernelNode(f"v{n}", op, tuple(args)) for n, (op, *args) in enumerate(nodes))
    return KernelGraph(specs, made, tuple(outputs))


F32 = ("float32", (6, 16))
#: A masked, scaled and normed value, with its backward on what it saved.
FORWARD = kernel(
    [("aten.mul.Tensor", Ref("x"), Ref("w")), ("aten.tanh.default", Ref("v0")),
     ("aten.where.self", Ref("m"), Ref("v1"), Ref("x")), ("aten.sum.dim_IntList", Ref("v2"), [1], True),
     ("aten.sub.Tensor", Ref("v2"), Ref("v3")), ("aten.amax.default", Ref("v4"), [1])],
    ["v4", "v1", "v5"], x=F32, w=("float32", (16,)), m=("bool", (6, 16)),
)  # fmt: skip
BACKWARD = kernel(
    [("aten.mul.Tensor", Ref("y"), Ref("y")), ("aten.rsub.Scalar", Ref("v0"), 1),
     ("aten.mul.Tensor", Ref("g"), Ref("v1")), ("aten.where.self", Ref("m"), Ref("v2"), Ref("g")),
     ("aten.mul.Tensor", Ref("v3"), Ref("w")), ("aten.mul.Tensor", Ref("v3"), Ref("x")),
     ("aten.sum.dim_IntList", Ref("v5"), [0])],
    ["v4", "v6"], y=F32, m=("bool", (6, 16)), w=("float32", (16,)), x=F32, g=F32,
)  # fmt: skip
UNIT = Unit(FORWARD, BACKWARD, (("output", 1), ("input", 2), ("input", 1), ("input", 0), None))
#: Rows that are looked up, compared and sorted by place.
LOOKUP = Unit(kernel(
    [("aten.embedding.default", Ref("table"), Ref("i")), ("aten.argmax.default", Ref("v0"), 1),
     ("aten.cumsum.default", Ref("v0"), 0), ("aten.clamp.default", Ref("v2"), -4, 4)],
    ["v1", "v3", "v0"], table=("float32", (9, 12)), i=("int64", (7,)),
))  # fmt: skip
#: Functions of single numbers.
POINTS = Unit(kernel(
    [("aten.exp.default", Ref("x")), ("aten.div.Tensor", Ref("y"), Ref("v0")), ("aten.round.default", Ref("y")),
     ("aten._to_copy.default", Ref("x")), ("aten.abs.default", Ref("y")), ("aten.sqrt.default", Ref("v4")),
     ("aten.gt.Tensor", Ref("x"), Ref("y")), ("aten.maximum.default", Ref("x"), Ref("y"))],
    ["v1", "v2", "v3", "v5", "v6", "v7"], x=F32, y=F32,
))  # fmt: skip


def another(unit: Unit, of: str, position: int, op: str, *args: Any) -> Side:
    """A side, one operator of which is another."""
    graphs = {"forward": unit.forward, "backward": unit.backward}
    graph = graphs[of]
    assert graph is not None
    nodes = list(graph.nodes)
    nodes[position] = KernelNode(nodes[position].name, op, args or nodes[position].args)
    graphs[of] = replace(graph, nodes=tuple(nodes))
    assert graphs["forward"] is not None
    return Side(
        build_portable(graphs["forward"]), None if graphs["backward"] is None else build_portable(graphs["backward"])
    )


def saving(change: Callable[[list[torch.Tensor]], None]) -> Side:
    """A side whose forward is right but for what it saves for its backward, in place."""
    forward, backward = build_portable(UNIT.forward), build_portable(BACKWARD)

    def damaged(inputs: Any, scalars: Any) -> Any:
        made = [t.clone() for t in forward(inputs, scalars) if t is not None]
        change(made)
        return made

    return Side(damaged, backward)


def returning(change: Callable[[list[torch.Tensor]], Any]) -> Side:
    """A side whose backward is right but for its results."""
    backward = build_portable(BACKWARD)

    def damaged(inputs: Any, scalars: Any) -> Any:
        made = [t.clone() for t in backward(inputs, scalars) if t is not None]
        change(made)
        return made

    return Side(build_portable(UNIT.forward), damaged)


def set_where(made: list[torch.Tensor], number: int, where: Callable[[torch.Tensor], torch.Tensor], to: float) -> None:
    made[number][where(made[number])] = to


GRAPHS: Mapping[str, tuple[Unit, Callable[[], Side]]] = {
    "sum for product": (UNIT, lambda: another(UNIT, "forward", 0, "aten.add.Tensor")),
    "mask the other way": (UNIT, lambda: another(UNIT, "forward", 2, "aten.where.self", Ref("m"), Ref("x"), Ref("v1"))),
    "mask dropped": (UNIT, lambda: another(UNIT, "forward", 2, "aten.clone.default", Ref("v1"))),
    "least for largest": (UNIT, lambda: another(UNIT, "forward", 5, "aten.amin.default")),
    "mean for sum": (UNIT, lambda: another(UNIT, "forward", 3, "aten.mean.dim")),
    "sum of the other axis": (
        UNIT, lambda: another(UNIT, "forward", 3, "aten.sum.dim_IntList", Ref("v2"), [0], True)),
    "another derivative": (UNIT, lambda: another(UNIT, "backward", 1, "aten.rsub.Scalar", Ref("v0"), 2)),
    "gradient past the mask": (UNIT, lambda: another(UNIT, "backward", 3, "aten.clone.default", Ref("v2"))),
    "gradient of the mask's other side": (
        UNIT, lambda: another(UNIT, "backward", 3, "aten.where.self", Ref("m"), Ref("v2"), Ref("v1"))),
    "gradient of another input": (
        UNIT, lambda: another(UNIT, "backward", 5, "aten.mul.Tensor", Ref("v3"), Ref("y"))),
    "largest of the absolute": (LOOKUP, lambda: another(LOOKUP, "forward", 1, "aten.argmin.default")),
    "other running sum": (LOOKUP, lambda: another(LOOKUP, "forward", 2, "aten.cumsum.default", Ref("v0"), 1)),
    "other bounds": (LOOKUP, lambda: another(LOOKUP, "forward", 3, "aten.clamp.default", Ref("v2"), -4, 5)),
    "power of two for e": (POINTS, lambda: another(POINTS, "forward", 0, "aten.exp2.default")),
    "down for nearest": (POINTS, lambda: another(POINTS, "forward", 2, "aten.floor.default")),
    "towards zero for nearest": (POINTS, lambda: another(POINTS, "forward", 2, "aten.trunc.default")),
    "equal counts": (POINTS, lambda: another(POINTS, "forward", 6, "aten.ge.Tensor")),
    "NaN loses": (POINTS, lambda: another(POINTS, "forward", 7, "aten.fmax.default")),
}  # fmt: skip
SAVED: Mapping[str, tuple[Unit, Callable[[], Side]]] = {
    "saved before tanh": (UNIT, lambda: another(UNIT, "forward", 1, "aten.clone.default")),
    "saved in bf16": (UNIT, lambda: saving(lambda made: made.__setitem__(1, made[1].bfloat16().float()))),
    "saved rows moved": (UNIT, lambda: saving(lambda made: made.__setitem__(1, made[1].roll(1, 0)))),
    "saved without its last column": (UNIT, lambda: saving(lambda made: made[1][:, -1:].zero_())),
    "saved without NaN": (UNIT, lambda: saving(lambda made: made[1].nan_to_num_(0.0))),
    "saved uninitialised": (UNIT, lambda: saving(lambda made: made[1].fill_(7.0))),
    "gradient lost": (UNIT, lambda: returning(lambda made: made[1].zero_())),
    "gradient added twice": (UNIT, lambda: returning(lambda made: made[0].mul_(2))),
    "gradient of one row": (UNIT, lambda: returning(lambda made: made[0][1:].zero_())),
    "gradient in bf16": (UNIT, lambda: returning(lambda made: made.__setitem__(0, made[0].bfloat16().float()))),
    "infinite gradient is large": (UNIT, lambda: returning(lambda made: made[0].clamp_(-3e38, 3e38))),
    "one in a million": (
        UNIT, lambda: returning(lambda made: set_where(made, 0, lambda t: (t > 1e6) & (t < 9e6), 0.0))),
}  # fmt: skip


def alone(op: str, *args: Any, dtype: str = "float32", shape: tuple[int, ...] = (6, 400)) -> Unit:
    """A unit of one operator, whose first argument is the input ``x``."""
    return Unit(kernel([(op, Ref("x"), *args)], ["v0"], x=(dtype, shape)))


SUM, WIDE_SUM, NARROW_SUM = (
    alone("aten.sum.dim_IntList", [1], dtype=dtype) for dtype in ("float32", "int64", "bfloat16")
)
LEAST, SPREAD = alone("aten.amin.default", [1]), alone("aten.var.correction", [1])
RUNNING, TWICE, COPY = (
    alone("aten.cumsum.default", 1), alone("aten.mul.Tensor", 2, dtype="uint8"), alone("aten.clone.default")
)  # fmt: skip


def computing(make: Callable[[torch.Tensor], torch.Tensor]) -> Side:
    """A side of the operator of one input that ``make`` is."""
    return Side(lambda inputs, scalars: [make(inputs[0])], None)


def add_narrowly(x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(x.shape[0], dtype=x.dtype)
    for column in x.unbind(1):
        made = made + column
    return made


def run_by_blocks(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([block.cumsum(1) for block in x.split(64, 1)], 1)


REDUCED: Mapping[str, tuple[Unit, Callable[[], Side]]] = {
    "least begins with zero": (LEAST, lambda: computing(lambda x: x.amin(1).clamp(max=0))),
    "last of the row left out": (SUM, lambda: computing(lambda x: x[:, :-1].sum(1))),
    "64 bits added in 32": (WIDE_SUM, lambda: computing(lambda x: x.to(torch.int32).sum(1, dtype=torch.int32).long())),
    "bf16 added in bf16": (NARROW_SUM, lambda: computing(add_narrowly)),
    "variance of squares": (
        SPREAD, lambda: computing(lambda x: ((x**2).mean(1) - x.mean(1) ** 2) * (x.shape[1] / (x.shape[1] - 1)))),
    "running sum begins anew": (RUNNING, lambda: computing(run_by_blocks)),
    "bytes end at the largest": (TWICE, lambda: computing(lambda x: (x.int() * 2).clamp(0, 255).to(torch.uint8))),
    "copy is its input": (COPY, lambda: computing(lambda x: x)),
    "laid out the other way": (COPY, lambda: computing(lambda x: x.t().contiguous().t())),
}  # fmt: skip
ALL = {**GRAPHS, **SAVED, **REDUCED}


@pytest.mark.parametrize("name", list(ALL))
def test_a_damaged_kernel_is_refused(name: str) -> None:
    unit, side = ALL[name]
    expected = Outcome.RIGHT if name in MISSED else Outcome.REFUSED
    assert judge(unit, side(), is_full=True).outcome is expected


def test_what_is_not_damaged_is_right_and_damage_is_of_many_kinds() -> None:
    for unit in {unit.digest: unit for unit, _ in ALL.values()}.values():
        forms = [build_portable(k) for k in unit.kernels]
        assert judge(unit, Side(forms[0], forms[1] if len(forms) > 1 else None)).outcome is Outcome.RIGHT
    assert len(ALL) == 39 and len(MISSED) <= 2
