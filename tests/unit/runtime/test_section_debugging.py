"""rdukit debug: seeded numeric faults are found in the operator and tensor that make them, and right sections pass."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, Special, packed_spec
from rdukit_runtime.check.sections import FaultKind, SectionCheck, check_section
from rdukit_runtime.engine.portable import build_portable
from support import shows

pytestmark = shows("debug")

BF16 = Special("dtype", "bfloat16")
F16 = Special("dtype", "float16")
F32 = Special("dtype", "float32")
X = torch.linspace(0.5, 2.0, 12).reshape(3, 4)


def kernel(nodes: Sequence[tuple[Any, ...]], inputs: Mapping[str, torch.Tensor]) -> KernelGraph:
    specs = tuple(packed_spec(n, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in inputs.items())
    made = []
    for number, (op, *args) in enumerate(nodes):
        named = args.pop() if isinstance(args[-1], dict) else {}
        made.append(KernelNode(f"v{number}", op, tuple(args), named))
    return KernelGraph(specs, tuple(made), (made[-1].name,))


def check(
    nodes: Sequence[tuple[Any, ...]], results: Sequence[torch.Tensor] | None = None, tolerance: float = 1e-3,
    **inputs: torch.Tensor,
) -> SectionCheck:  # fmt: skip
    graph = kernel(nodes, inputs)
    values = list(inputs.values())
    made = build_portable(graph)([t.clone() for t in values], {}) if results is None else results
    names = [f"in.{name}" for name in inputs], ["out"]
    return check_section(graph, names, values, made, {}, tolerance, is_native=results is not None)


def the_fault(found: SectionCheck) -> tuple[FaultKind, str, str]:
    (fault,) = found.faults
    assert fault.why
    return fault.kind, fault.operator, fault.tensor


def test_a_right_section_has_no_fault_and_its_error_is_told() -> None:
    nodes = [("aten.exp.default", Ref("x")), ("aten.mm.default", Ref("v0"), Ref("w"))]
    found = check(nodes, [torch.exp(X) @ X.T], x=X, w=X.T.contiguous())
    assert found.faults == ()
    assert found.error is not None
    assert 0 < found.error < 1e-5


def test_a_native_library_that_computes_otherwise() -> None:
    nodes = [("aten.exp.default", Ref("x")), ("aten.mul.Tensor", Ref("v0"), 2.0)]
    found = check(nodes, [torch.exp(X) * 2.0 + 0.01], x=X)
    assert the_fault(found) == (FaultKind.NATIVE, "mul.Tensor", "out")
    assert "12 of 12 elements differ" in found.faults[0].why


def test_a_native_library_that_leaves_one_element_out() -> None:
    wrong = torch.tanh(X)
    wrong[2, 3] = 0.0
    found = check([("aten.tanh.default", Ref("x"))], [wrong], x=X)
    assert the_fault(found) == (FaultKind.NATIVE, "tanh", "out")
    assert "[2, 3]" in found.faults[0].why


def test_an_exponential_that_overflows() -> None:
    nodes = [("aten.mul.Tensor", Ref("x"), 100.0), ("aten.exp.default", Ref("v0")), ("aten.add.Tensor", Ref("v1"), 1)]
    found = check(nodes, x=X)
    assert the_fault(found) == (FaultKind.OVERFLOW, "exp", "v1")
    assert "finite numbers of at most 200" in found.faults[0].why


def test_a_conversion_to_half_that_overflows() -> None:
    nodes = [("aten.mul.Tensor", Ref("x"), 1e5), ("aten._to_copy.default", Ref("v0"), {"dtype": F16})]
    assert the_fault(check(nodes, x=X)) == (FaultKind.OVERFLOW, "_to_copy", "out")


def test_a_softmax_whose_row_is_masked_altogether() -> None:
    mask = torch.tensor([[True] * 4, [False] * 4, [True] * 4])
    nodes = [
        ("aten.masked_fill.Scalar", Ref("x"), Ref("mask"), Special("float", "-inf")),
        ("aten._softmax.default", Ref("v0"), -1, False), ("aten.mul.Tensor", Ref("v1"), 2.0),
    ]  # fmt: skip
    found = check(nodes, x=X, mask=mask)
    assert the_fault(found) == (FaultKind.NAN, "_softmax", "v1")
    assert "infinities in 'v0', written by masked_fill.Scalar" in found.faults[0].why


def test_the_infinities_of_a_mask_are_no_fault_and_those_of_an_overflow_next_to_them_are() -> None:
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[:, 0] = True
    masked = ("aten.masked_fill.Scalar", Ref("x"), Ref("mask"), Special("float", "-inf"))
    found = check([masked], x=X, mask=mask)
    assert (found.faults, found.masks) == ((), {"out"})
    overflow = [("aten.mul.Tensor", Ref("x"), 3e38), ("aten.masked_fill.Scalar", Ref("v0"), *masked[2:])]
    found = check(overflow, x=X, mask=mask)
    assert the_fault(found) == (FaultKind.OVERFLOW, "mul.Tensor", "v0")
    assert found.masks == frozenset()


def test_a_nan_of_an_overflow_is_reported_as_the_overflow() -> None:
    nodes = [("aten.mul.Tensor", Ref("x"), 1e3), ("aten.exp.default", Ref("v0")), ("aten.mul.Tensor", Ref("v1"), 0.0)]
    found = check(nodes, x=X)
    assert the_fault(found) == (FaultKind.OVERFLOW, "exp", "v1")
    assert "mul.Tensor makes a NaN of it in 'out'" in found.faults[0].why


def test_the_rounding_that_a_later_difference_shows_is_named_and_not_the_difference() -> None:
    nodes = [
        ("aten.add.Tensor", Ref("x"), 1e4), ("aten._to_copy.default", Ref("v0"), {"dtype": BF16}),
        ("aten._to_copy.default", Ref("v1"), {"dtype": F32}), ("aten.sub.Tensor", Ref("v2"), 1e4),
        ("aten.mul.Tensor", Ref("v3"), 2.0),
    ]  # fmt: skip
    kind, operator, _ = the_fault(check(nodes, x=X, tolerance=2e-2))
    assert (kind, operator) == (FaultKind.PRECISION, "_to_copy"), "it is off by 0.0002 of its own magnitude"


def test_a_softmax_whose_rows_are_masked_in_part_is_right() -> None:
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[:, 0] = True
    nodes = [
        ("aten.masked_fill.Scalar", Ref("x"), Ref("mask"), Special("float", "-inf")),
        ("aten._softmax.default", Ref("v0"), -1, False),
    ]  # fmt: skip
    assert check(nodes, x=X, mask=mask).faults == ()


@pytest.mark.parametrize(
    ("op", "value", "kind"),
    [("aten.log.default", -1.0, FaultKind.NAN), ("aten.log.default", 0.0, FaultKind.OVERFLOW),
     ("aten.sqrt.default", -4.0, FaultKind.NAN), ("aten.reciprocal.default", 0.0, FaultKind.OVERFLOW)],
)  # fmt: skip
def test_a_number_outside_an_operators_domain(op: str, value: float, kind: FaultKind) -> None:
    x = X.clone()
    x[1, 1] = value
    found = check([("aten.neg.default", Ref("x")), ("aten.neg.default", Ref("v0")), (op, Ref("v1"))], x=x)
    assert the_fault(found) == (kind, op.removeprefix("aten.").removesuffix(".default"), "out")


def test_a_nan_that_came_with_the_input() -> None:
    x = X.clone()
    x[0, 0] = float("nan")
    found = check([("aten.exp.default", Ref("x"))], x=x)
    assert the_fault(found) == (FaultKind.NAN, "input", "in.x")
    assert "before the section ran" in found.faults[0].why


def test_a_wrong_dtype_in_the_middle() -> None:
    # Large numbers that are nearly equal: bf16 keeps nothing of their difference.
    nodes = [
        ("aten.add.Tensor", Ref("x"), 1000.0), ("aten._to_copy.default", Ref("v0"), {"dtype": BF16}),
        ("aten._to_copy.default", Ref("v1"), {"dtype": F32}), ("aten.sub.Tensor", Ref("v2"), 1000.0),
    ]  # fmt: skip
    found = check(nodes, x=X)
    kind, operator, _ = the_fault(found)
    assert (kind, operator) == (FaultKind.PRECISION, "_to_copy")
    assert found.error is not None
    assert found.error > 0.5


def test_a_section_that_has_no_form_in_f64_says_so() -> None:
    packed = torch.randint(-8, 8, (4, 4), dtype=torch.int8)
    found = check([("aten._int_mm.default", Ref("a"), Ref("b"))], a=packed.repeat(8, 4), b=packed.repeat(4, 2))
    assert found.faults == ()
