"""A backward that adds to a gradient which others have begun, where it lies."""

import pytest
import torch

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, TensorSpec, packed_spec
from rdukit_compiler.ir import Value, ValueKind
from rdukit_compiler.passes.differentiate import OperatorShape, SectionKernels, TensorShape
from rdukit_compiler.passes.gradient_outputs import LARGE_GRADIENT, accumulate_gradients, has_own_memory
from rdukit_runtime.engine.portable import build_portable
from support import shows

pytestmark = shows("engine", "precision")

ROWS, WIDTH = 4, 8
TABLE: TensorShape = ((ROWS, WIDTH), "float32")
READ: TensorShape = ((2, 3, WIDTH), "float32")
VALUES = {"w": Value("w", ValueKind.PARAMETER, "float32", (ROWS, WIDTH), requires_grad=True)}


def section(node: KernelNode, *inputs: TensorSpec, outputs: tuple[str, ...] = ("v0",)) -> SectionKernels:
    """Its backward is one call."""
    shapes = tuple((spec.shape, spec.dtype) for spec in inputs)
    backward = KernelGraph(inputs, (node,), outputs)
    work = (OperatorShape(node.op, shapes, (TABLE,)),)
    return SectionKernels((), (), KernelGraph((), (), ()), (), (), ("w",), backward, (), work)


def lookup(padding_idx: int = -1) -> SectionKernels:
    arguments = (Ref("i0"), Ref("i1"), ROWS, padding_idx, False)
    node = KernelNode("v0", "aten.embedding_dense_backward.default", arguments)
    return section(node, packed_spec("i0", "float32", (2, 3, WIDTH)), packed_spec("i1", "int64", (2, 3)))


@pytest.mark.parametrize(("padding_idx", "last"), [(-1, "aten.index_put_.default"), (2, "aten.add_.Tensor")])
def test_a_lookups_rows_are_added_to_the_sum_so_far(padding_idx: int, last: str) -> None:
    rows, indices = torch.randn(2, 3, WIDTH), torch.tensor([[0, 2, 0], [3, 0, 2]])
    before = lookup(padding_idx)
    after = accumulate_gradients(before, ["w"], VALUES)
    assert before.backward is not None and after.backward is not None
    total = torch.randn(ROWS, WIDTH)
    (own,) = build_portable(before.backward)([rows, indices], {})
    expected = total + own
    (made,) = build_portable(after.backward)([rows, indices, total], {})
    assert made is total, "it works in place"
    torch.testing.assert_close(total, expected)  # f32, the same few numbers in another order
    assert after.backward.nodes[-1].op == last
    assert [shape.op for shape in after.backward_work] == [node.op for node in after.backward.nodes]


def test_a_product_is_added_to_the_sum_so_far() -> None:
    node = KernelNode("v0", "aten.mm.default", (Ref("i0"), Ref("i1")))
    specs = (packed_spec("i0", "float32", (ROWS, 5)), packed_spec("i1", "float32", (5, WIDTH)))
    after = accumulate_gradients(section(node, *specs), ["w"], VALUES)
    assert after.backward is not None and after.backward.outputs == ("i2",)
    left, right, total = torch.randn(ROWS, 5), torch.randn(5, WIDTH), torch.ones(ROWS, WIDTH)
    build_portable(after.backward)([left, right, total], {})
    torch.testing.assert_close(total, 1 + left @ right)


def test_rows_that_the_section_also_gives_elsewhere_are_made_first() -> None:
    node = lookup().backward
    assert node is not None
    twice = section(node.nodes[0], *node.inputs, outputs=("v0", "v0"))
    after = accumulate_gradients(twice, ["w"], VALUES)
    assert after.backward is not None and after.backward.outputs == ("i2", "v0")
    assert after.backward.nodes[-1].op == "aten.add_.Tensor"


def test_only_large_gradients_with_memory_of_their_own_are_added_to() -> None:
    size = LARGE_GRADIENT // 4
    large = {"w": Value("w", ValueKind.PARAMETER, "float32", (size,))}
    spec, shape = packed_spec("i0", "float32", (size,)), (((size,), "float32"),)

    def has_own(op: str, values: dict[str, Value], names: tuple[str, ...] = ("w",)) -> bool:
        node = KernelNode("v0", op, (Ref("i0"),))
        backward = KernelGraph((spec,), (node,), ("v0",) * len(names))
        work = (OperatorShape(op, shape, shape),)
        kernels = SectionKernels((), (), KernelGraph((), (), ()), (), (), names, backward, (), work)
        return has_own_memory(kernels, "w", values)

    assert has_own("aten.neg.default", large)
    assert not has_own("aten.detach.default", large), "a view of an input"
    assert not has_own("aten.neg.default", VALUES), "too small"
    both = {**large, "other": large["w"]}
    assert not has_own("aten.neg.default", both, ("w", "other")), "two outputs may be one"
