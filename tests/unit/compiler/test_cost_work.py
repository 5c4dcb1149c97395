"""FLOPs of ATen operators by name and shape."""

import pytest

from rdukit_compiler.cost import OpWork, Shape, WorkKind, operator_work
from support import shows

pytestmark = shows("pef-profile")


def f32(*shape: int) -> Shape:
    return shape, "float32"


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "flops", "kind"),
    [
        ("aten.mm.default", [f32(4, 8), f32(8, 16)], [f32(4, 16)], 2 * 4 * 8 * 16, WorkKind.GEMM),
        ("aten.addmm.default", [f32(16), f32(4, 8), f32(8, 16)], [f32(4, 16)], 2 * 4 * 8 * 16, WorkKind.GEMM),
        ("aten.bmm.default", [f32(3, 4, 8), f32(3, 8, 5)], [f32(3, 4, 5)], 2 * 3 * 4 * 8 * 5, WorkKind.GEMM),
        ("aten.matmul.default", [f32(2, 3, 4, 8), f32(8, 5)], [f32(2, 3, 4, 5)], 2 * 24 * 8 * 5, WorkKind.GEMM),
        ("aten.linear.default", [f32(2, 4, 8), f32(16, 8), f32(16)], [f32(2, 4, 16)], 2 * 8 * 8 * 16, WorkKind.GEMM),
        ("aten::linear", [f32(4, 8), f32(16, 8)], [f32(4, 16)], 2 * 4 * 8 * 16, WorkKind.GEMM),
        (
            "rdukit.int8_linear.default",
            [f32(2, 4, 96), ((16, 96), "int8"), f32(16)],
            [f32(2, 4, 16)],
            2 * 8 * 96 * 16,
            WorkKind.GEMM,
        ),
        (
            "rdukit.int4_linear.default",
            [f32(2, 4, 96), ((16, 3, 16), "uint8"), ((16, 3), "bfloat16"), f32(16)],
            [f32(2, 4, 16)],
            2 * 8 * 96 * 16,
            WorkKind.GEMM,
        ),
        (
            "aten.convolution.default",
            [f32(2, 3, 8, 8), f32(6, 3, 5, 5), f32(6)],
            [f32(2, 6, 4, 4)],
            2 * (2 * 6 * 4 * 4) * (3 * 5 * 5),
            WorkKind.GEMM,
        ),
        (
            "aten.convolution_backward.default",
            [f32(2, 6, 4, 4), f32(2, 3, 8, 8), f32(6, 3, 5, 5)],
            [f32(2, 3, 8, 8), f32(6, 3, 5, 5), f32(6)],
            2 * 2 * (2 * 6 * 4 * 4) * (3 * 5 * 5),
            WorkKind.GEMM,
        ),
        (
            "aten.convolution_backward.default",
            [f32(2, 6, 4, 4), f32(2, 3, 8, 8), f32(6, 3, 5, 5)],
            [f32(6, 3, 5, 5), f32(6)],
            2 * (2 * 6 * 4 * 4) * (3 * 5 * 5),
            WorkKind.GEMM,
        ),
        (
            "aten.scaled_dot_product_attention.default",
            [f32(1, 2, 4, 8)] * 3,
            [f32(1, 2, 4, 8)],
            2 * 4 * 4 * (2 * 8 + 2 * 8 + 5),
            WorkKind.GEMM,
        ),
        ("aten.relu.default", [f32(4, 8)], [f32(4, 8)], 32, WorkKind.ELEMENTWISE),
        ("aten.add_.Tensor", [f32(4, 8), f32(8)], [f32(4, 8)], 32, WorkKind.ELEMENTWISE),
        ("aten.gelu.default", [f32(4, 8)], [f32(4, 8)], 320, WorkKind.ELEMENTWISE),
        ("aten.threshold_backward.default", [f32(4, 8)] * 2, [f32(4, 8)], 32, WorkKind.ELEMENTWISE),
        ("aten.nobody_knows_this.default", [f32(4, 8)], [f32(2)], 32, WorkKind.ELEMENTWISE),
        ("aten.sum.dim_IntList", [f32(4, 8)], [f32(1, 8)], 32, WorkKind.REDUCTION),
        ("aten.native_layer_norm.default", [f32(4, 8), f32(8), f32(8)], [f32(4, 8)], 8 * 32, WorkKind.REDUCTION),
        ("aten.native_layer_norm_backward.default", [f32(4, 8)] * 2, [f32(4, 8)], 14 * 32, WorkKind.REDUCTION),
        ("aten._log_softmax.default", [f32(4, 8)], [f32(4, 8)], 5 * 32, WorkKind.REDUCTION),
        ("aten.nll_loss_forward.default", [f32(4, 8), ((4,), "int64")], [f32(), f32()], 32, WorkKind.REDUCTION),
        ("aten.view.default", [f32(4, 8)], [f32(32)], 0, WorkKind.VIEW),
        ("aten.t.default", [f32(4, 8)], [f32(8, 4)], 0, WorkKind.VIEW),
        ("getitem", [f32(4, 8)], [f32(4, 8)], 0, WorkKind.VIEW),
        ("aten._to_copy.default", [f32(4, 8)], [((4, 8), "bfloat16")], 0, WorkKind.MOVEMENT),
        ("aten.embedding.default", [f32(96, 8), ((4,), "int64")], [f32(4, 8)], 0, WorkKind.MOVEMENT),
        ("rdukit.sgd", [f32(10, 10)] * 3, [f32(10, 10)] * 2, 400, WorkKind.ELEMENTWISE),
        ("rdukit.adamw", [f32(100)] * 4, [f32(100)] * 3, 1500, WorkKind.ELEMENTWISE),
    ],
)
def test_an_operator_counts_its_operations(
    op: str, inputs: list[Shape], outputs: list[Shape], flops: int, kind: WorkKind
) -> None:
    work = operator_work(op, inputs, outputs)
    assert (work.flops, work.kind) == (flops, kind)


def test_bytes_follow_the_dtype_and_views_move_none() -> None:
    assert operator_work("aten.relu.default", [((4, 8), "bfloat16")], [((4, 8), "bfloat16")]).bytes == 128
    assert operator_work("aten.view.default", [f32(4, 8)], [f32(32)]).bytes == 0
    weight, scale = ((16, 3, 16), "uint8"), ((16, 3), "bfloat16")
    work = operator_work("rdukit.int4_linear.default", [f32(1, 96), weight, scale], [f32(1, 16)])
    assert work.bytes == 4 * 96 + 16 * 48 + 2 * 16 * 3 + 4 * 16


def test_an_operator_without_tensors_is_no_work() -> None:
    assert operator_work("aten.scalar_op.default", [], []) == OpWork(0, WorkKind.ELEMENTWISE, 0, 1)


@pytest.mark.parametrize("op", ["aten.mm", "aten.linear", "aten.matmul", "aten.bmm", "aten.einsum", "aten.convolution"])
def test_scalars_and_empty_tensors_do_not_stop_the_count(op: str) -> None:
    assert operator_work(op, [f32(0, 8), f32(8, 8)], [f32(0, 8)]).flops >= 0
