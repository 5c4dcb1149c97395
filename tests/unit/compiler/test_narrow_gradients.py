"""Gradients that were computed in bf16 leave a backward in bf16."""

import pytest

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, Special, packed_spec
from rdukit_compiler.passes.differentiate import OperatorShape, SectionKernels
from rdukit_compiler.passes.gradient_outputs import narrow_gradients
from support import shows

pytestmark = shows("precision", "engine")

SIZE = 256
WIDEN = {"dtype": Special("dtype", "float32")}


def section(*ops: str, size: int = SIZE, outputs: tuple[str, ...] | None = None) -> SectionKernels:
    """Its backward multiplies two bf16 matrices and goes on with ``ops``, one after the other; the last one widens."""
    narrow, wide = ((size, size), "bfloat16"), ((size, size), "float32")
    nodes = [KernelNode("v0", "aten.mm.default", (Ref("i0"), Ref("i1")))]
    work = [OperatorShape(nodes[0].op, (narrow, narrow), (narrow,))]
    for op in (*ops, "aten._to_copy.default"):
        arguments = (Ref(nodes[-1].name), *([[size, size]] if op == "aten.view.default" else []))
        is_last = op == "aten._to_copy.default"
        nodes.append(KernelNode(f"v{len(nodes)}", op, arguments, WIDEN if is_last else {}))
        work.append(OperatorShape(op, (narrow,), (wide if is_last else narrow,)))
    inputs = tuple(packed_spec(name, "bfloat16", (size, size)) for name in ("i0", "i1"))
    backward = KernelGraph(inputs, tuple(nodes), outputs or (nodes[-1].name,))
    return SectionKernels((), (), KernelGraph((), (), ()), (), (), ("w",), backward, (), tuple(work))


@pytest.mark.parametrize(
    "ops", [(), ("aten.t.default",) * 2, ("aten.view.default",)], ids=["product", "turned", "view"]
)
def test_a_product_leaves_as_it_was_computed(ops: tuple[str, ...]) -> None:
    before = section(*ops)
    after, narrow = narrow_gradients(before, ["w"])
    assert narrow == {"w"} and before.backward is not None and after.backward is not None
    assert after.backward.nodes == before.backward.nodes[:-1]
    assert after.backward.outputs == (before.backward.nodes[-2].name,)
    assert after.backward_work == before.backward_work[:-1]


@pytest.mark.parametrize(
    "kernels",
    [
        section("aten.t.default"),
        section("aten.t.default", "aten.view.default", "aten.t.default"),
        section("aten.exp.default"),
        section(size=8),
        section(outputs=("v1", "v1")),
        section(outputs=("v1", "v0")),
    ],
    ids=["turned once", "view between turns", "no product", "small", "widened for others", "handed over too"],
)
def test_any_other_gradient_stays_wide(kernels: SectionKernels) -> None:
    assert narrow_gradients(kernels, ["w"]) == (kernels, frozenset())
