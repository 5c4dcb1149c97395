"""What the chip would move through device memory."""

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, TensorSpec
from rdukit_compiler.cost.traffic import derivable_extras, looked_up_bytes
from support import shows

pytestmark = shows("pef-profile")


def spec(name: str, *shape: int, dtype: str = "bfloat16") -> TensorSpec:
    return TensorSpec(name, dtype, shape, ())


def node(name: str, op: str, *arguments: str) -> KernelNode:
    return KernelNode(name, f"aten.{op}.default", tuple(Ref(a) for a in arguments))


def test_only_what_a_matrix_product_made_is_stored_for_backward() -> None:
    kernel = KernelGraph(
        (spec("x", 4, 8), spec("w", 8, 8)),
        (
            node("h", "mm", "x", "w"),
            node("g", "gelu", "h"),
            node("n", "native_dropout", "g"),
            node("y", "mm", "n", "w"),
        ),
        ("y", "h", "g", "n"),
    )
    assert derivable_extras(kernel, 1) == {1: frozenset({"h"}), 2: frozenset({"h"})}


def test_a_cast_of_a_weight_is_made_again_from_the_weight() -> None:
    kernel = KernelGraph(
        (spec("x", 4, 8), spec("w", 8, 8, dtype="float32")),
        (node("c", "_to_copy", "w"), node("y", "mm", "x", "c")),
        ("y", "c"),
    )
    assert derivable_extras(kernel, 1) == {0: frozenset({"w"})}


def test_of_a_table_that_is_looked_up_only_the_rows_count() -> None:
    shapes = ("aten.embedding.default", [((1000, 16), "bfloat16"), ((4,), "int64")], [((4, 16), "bfloat16")])
    table, tokens = spec("table", 1000, 16), spec("tokens", 4, dtype="int64")
    looked_up = KernelGraph((table, tokens), (node("e", "embedding", "table", "tokens"),), ("e",))
    assert looked_up_bytes(looked_up, [shapes]) == {0: 4 * 16 * 2}
    tied = KernelGraph(
        (table, tokens), (node("e", "embedding", "table", "tokens"), node("y", "mm", "e", "table")), ("y",)
    )
    assert looked_up_bytes(tied, [shapes]) == {}


def test_a_table_that_is_looked_up_more_often_than_it_has_rows_counts_once() -> None:
    shapes = ("aten.embedding.default", [((10, 16), "bfloat16"), ((64,), "int64")], [((64, 16), "bfloat16")])
    table, tokens = spec("table", 10, 16), spec("tokens", 64, dtype="int64")
    kernel = KernelGraph((table, tokens), (node("e", "embedding", "table", "tokens"),), ("e",))
    assert looked_up_bytes(kernel, [shapes]) == {0: 10 * 16 * 2}
