"""What a kernel takes of the host's memory inside one run, and which of its outputs are views."""

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, Special, TensorSpec
from rdukit_compiler.cost.host_memory import kernel_memory
from rdukit_compiler.cost.work import Shape
from support import shows

pytestmark = shows("engine")

X = TensorSpec("x", "float32", (4, 8), (8, 1))
FULL: Shape = ((4, 8), "float32")  # 128 bytes
ROW: Shape = ((1, 8), "float32")


def node(name: str, op: str, *args: object) -> KernelNode:
    return KernelNode(name, op, tuple(Ref(a) if isinstance(a, str) else a for a in args))  # type: ignore[arg-type]


def test_a_value_lives_from_its_making_to_its_last_use() -> None:
    nodes = (
        node("a", "aten.exp.default", "x"), node("b", "aten.sin.default", "a"), node("c", "aten.add.Tensor", "a", "b"),
        node("d", "aten.cos.default", "c"),
    )  # fmt: skip
    found = kernel_memory(KernelGraph((X,), nodes, ("d",)), [[FULL]] * 4)
    assert found.scratch_bytes == 3 * 128 - 128, "a, b and c at once, of which the output's place is counted elsewhere"
    assert not found.shares and not found.holds


def test_views_and_updates_in_place_have_no_memory_of_their_own() -> None:
    nodes = (
        node("a", "aten.exp.default", "x"), node("v", "aten.view.default", "a", [32]),
        node("r", "aten.relu_.default", "v"),
    )  # fmt: skip
    found = kernel_memory(KernelGraph((X,), nodes, ("a", "r")), [[FULL], [((32,), "float32")], [((32,), "float32")]])
    assert found.scratch_bytes == 0
    assert found.shares == {1: ("o", 0)}


def test_a_view_of_an_input_is_in_the_inputs_memory() -> None:
    found = kernel_memory(
        KernelGraph((X,), (node("t", "aten.t.default", "x"),), ("t",)), [[((8, 4), "float32")]]
    )  # fmt: skip
    assert (found.scratch_bytes, found.shares) == (0, {0: ("i", 0)})


def test_a_row_of_something_larger_keeps_all_of_it() -> None:
    nodes = (node("a", "aten.exp.default", "x"), node("r", "aten.slice.Tensor", "a", 0, 0, 1))
    assert kernel_memory(KernelGraph((X,), nodes, ("r",)), [[FULL], [ROW]]).holds == {0: 128}


def test_a_loss_that_torch_reduces_inside_keeps_what_it_reduced() -> None:
    kernel = KernelGraph((X,), (node("l", "aten.mse_loss.default", "x", "x"),), ("l",))
    assert kernel_memory(kernel, [[((), "float32")]]).holds == {0: 128}


def test_outputs_of_one_call_are_freed_one_by_one_and_absent_ones_count_nothing() -> None:
    nodes = (
        node("all", "aten.native_layer_norm_backward.default", "x", "x", [True, False, True]),
        node("first", "getitem", "all", 0), node("third", "getitem", "all", 2),
        node("e", "aten.exp.default", "first"),
    )  # fmt: skip
    found = kernel_memory(KernelGraph((X,), nodes, ("third", "e")), [[FULL, ROW], [FULL]])
    assert found.scratch_bytes == 128, "'first', until 'e' is there"
    assert not found.holds


def test_fused_updates_need_nothing_and_others_tensors_as_large_as_the_largest_parameter() -> None:
    small = TensorSpec("y", "float32", (2,), (1,))
    for op, expected in (("rdukit.adamw", 0), ("rdukit.adamw_stepwise", 0), ("rdukit.adagrad", 3 * 128)):
        lists = tuple([Ref("x"), Ref("y")] for _ in range(5))
        kernel = KernelGraph((X, small), (KernelNode("u", op, lists, {"lr": Special("scalar", "lr")}),), ())
        assert kernel_memory(kernel, []).scratch_bytes == expected


def test_clipping_makes_a_gradient_for_each_that_it_takes() -> None:
    nodes = (
        KernelNode("c", "rdukit.clip_grad_norm", ([Ref("x"), Ref("x")], Special("scalar", "max_grad_norm"))),
        node("a", "getitem", "c", 0), node("b", "getitem", "c", 1),
    )  # fmt: skip
    found = kernel_memory(KernelGraph((X,), nodes, ("a", "b")), [])
    assert (found.scratch_bytes, dict(found.shares), dict(found.holds)) == (0, {}, {})
