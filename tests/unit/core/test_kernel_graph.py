"""Kernels as portable graphs: what is written is read again, and names are checked."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdukit.errors import PefCorrupt
from rdukit.pef.kernel import (
    SPECIAL_KINDS,
    Argument,
    KernelGraph,
    KernelNode,
    Ref,
    Special,
    TensorSpec,
    check_kernel,
    kernel_from_json,
    parse_operator,
    references,
)
from support import shows
from support.pefs.examples import example_kernels

pytestmark = shows("engine", "portable", "security")

NAMES = st.text("abcxyz_.0123", min_size=1, max_size=8)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8) | st.builds(Special, st.sampled_from(sorted(SPECIAL_KINDS)), st.text(max_size=8))
)  # fmt: skip


@st.composite
def kernel_graphs(draw: st.DrawFn) -> KernelGraph:
    """Graphs whose names are all defined before use."""
    names = draw(st.lists(NAMES, min_size=1, max_size=9, unique=True))
    split = draw(st.integers(0, len(names) - 1))
    sizes = st.lists(st.integers(0, 2**40), max_size=4)
    inputs = tuple(TensorSpec(name, draw(NAMES), tuple(draw(sizes)), tuple(draw(sizes))) for name in names[:split])
    nodes = []
    for index in range(split, len(names)):
        known = names[:index]
        leaves = SCALARS | st.sampled_from([Ref(n) for n in known]) if known else SCALARS
        arguments: st.SearchStrategy[Argument] = st.recursive(
            leaves, lambda inner: st.lists(inner, max_size=3), max_leaves=6
        )
        args = tuple(draw(st.lists(arguments, max_size=3)))
        kwargs = draw(st.dictionaries(NAMES, arguments, max_size=2))
        nodes.append(KernelNode(names[index], draw(NAMES), args, kwargs))
    outputs = tuple(draw(st.lists(st.none() | st.sampled_from(names), max_size=3)))
    return KernelGraph(inputs, tuple(nodes), outputs)


@settings(max_examples=60)
@given(kernel_graphs())
def test_a_kernel_is_read_as_it_was_written(graph: KernelGraph) -> None:
    again = kernel_from_json(graph.to_json())
    assert again == graph
    assert again.to_json() == graph.to_json()
    assert again.digest() == graph.digest()


@settings(max_examples=40)
@given(kernel_graphs(), st.data())
def test_a_kernel_cut_short_is_refused(graph: KernelGraph, data: st.DataObject) -> None:
    raw = graph.to_json()
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(PefCorrupt):
        kernel_from_json(raw[:cut])


def test_the_order_of_keywords_does_not_change_the_bytes() -> None:
    first = KernelGraph((), (KernelNode("a", "op", (), {"x": 1, "y": 2}),), ("a",))
    second = KernelGraph((), (KernelNode("a", "op", (), {"y": 2, "x": 1}),), ("a",))
    assert first.to_json() == second.to_json()


def test_references_are_found_in_nested_lists_in_order() -> None:
    assert references([Ref("a"), [1, Ref("b"), [Ref("c")]], "d"]) == ["a", "b", "c"]


INPUT = TensorSpec("x", "float32", (1,), (1,))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (KernelGraph((INPUT, INPUT), (), ()), "input 'x' is defined twice"),
        (KernelGraph((INPUT,), (KernelNode("x", "op", ()),), ()), "node 'x' is defined twice"),
        (KernelGraph((), (KernelNode("y", "op", (Ref("y"),)),), ()), "uses 'y', which is not defined before it"),
        (KernelGraph((), (KernelNode("y", "op", (), {"k": [Ref("z")]}),), ()), "uses 'z'"),
        (KernelGraph((INPUT,), (), ("z",)), "output 'z' is not defined"),
    ],
)
def test_a_name_that_is_not_defined_once_before_use_is_refused(graph: KernelGraph, message: str) -> None:
    with pytest.raises(PefCorrupt, match=message):
        check_kernel(graph)
    with pytest.raises(PefCorrupt, match=message):
        kernel_from_json(graph.to_json())


@pytest.mark.parametrize(
    "argument", [{"pickle": "x"}, {"ref": "x", "dtype": "y"}, {}, {"dtype": {"ref": "x"}, "a": 1}], ids=str
)
def test_an_argument_of_another_kind_is_refused(argument: object) -> None:
    value = {"inputs": [], "nodes": [["a", "op", [argument], {}]], "outputs": ["a"]}
    with pytest.raises(PefCorrupt):
        kernel_from_json(json.dumps(value).encode())


def test_infinity_is_written_as_a_special_never_as_a_bare_float() -> None:
    with pytest.raises(ValueError, match="JSON"):
        KernelGraph((), (KernelNode("a", "op", (float("inf"),)),), ()).to_json()
    assert kernel_from_json(KernelGraph((), (KernelNode("a", "op", (Special("float", "inf"),)),), ()).to_json())


def test_equal_kernels_have_equal_digests_and_others_do_not() -> None:
    digests = [kernel.digest() for kernel in example_kernels().values()]
    assert digests == list(example_kernels())
    assert len(set(digests)) == 2


@pytest.mark.parametrize(
    ("op", "parts"),
    [
        ("aten.add_.Tensor", ("aten", "add_", "Tensor")), ("rdukit.sgd", ("rdukit", "sgd", "")),
        ("getitem", ("", "getitem", "")), ("aten.linear.default", ("aten", "linear", "default")),
        ("own.f.a.b", ("own", "f", "a.b")),
    ],
)  # fmt: skip
def test_an_operators_name_has_up_to_three_parts_and_is_written_as_it_was_read(
    op: str, parts: tuple[str, str, str]
) -> None:
    assert parse_operator(op) == parts
    assert str(parse_operator(op)) == op


def test_only_torchs_underscore_marks_an_operator_as_in_place() -> None:
    assert parse_operator("aten.add_.Tensor").is_in_place
    assert not parse_operator("aten.add.Tensor_").is_in_place
    assert not parse_operator("rdukit.sgd_").is_in_place
