"""Inputs that choose rows of a table: found in a PEF's kernels, and numbers beyond the table are refused."""

import struct
from dataclasses import replace

import pytest

from rdukit.errors import InvalidArgument
from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, packed_spec
from rdukit.pef.model import Pef
from rdukit_serving.checks import check_indices, find_tables
from rdukit_serving.signature import InferRequest, RawTensor, ServedSignature, ServedTensor
from support import shows
from support.pefs.examples import example_pef

pytestmark = shows("inference")

TABLE = packed_spec("table", "float32", (20, 4))
SMALL = packed_spec("small", "float32", (3, 7))
CODES = packed_spec("codes", "int64", (4, 3))


def pef_of(*sections: tuple[tuple[str, ...], tuple[str, ...]]) -> Pef:
    """The example with as many forward sections, whose kernels are called ``0``, ``1`` …, with these symbols."""
    example = example_pef()
    made = [
        replace(example.sections[0], id=number, kernel=str(number), inputs=given, outputs=made)
        for number, (given, made) in enumerate(sections)
    ]
    return replace(example, sections=tuple(made))


def test_a_table_is_found_where_an_input_reaches_it_as_it_came() -> None:
    kernel = KernelGraph(
        (TABLE, CODES, SMALL),
        (
            KernelNode("flat", "aten.view.default", (Ref("codes"), [12])),
            KernelNode("rows", "aten.embedding.default", (Ref("table"), Ref("flat"))),
            KernelNode("chosen", "aten.index_select.default", (Ref("small"), 1, Ref("flat"))),
        ),
        ("rows", "chosen"),
    )
    pef = pef_of((("t", "c", "s"), ("r", "x")))
    # Two tables: the smaller one says what is legal.
    assert find_tables(pef, {"0": kernel}, [0], ["c"]) == {"c": 7}
    assert find_tables(pef, {"0": kernel}, [0], ["t"]) == {}
    assert find_tables(pef, {}, [0], ["c"]) == {}


def test_a_number_that_was_computed_is_no_index_of_the_input_and_another_section_may_have_the_table() -> None:
    first = KernelGraph(
        (CODES,),
        (
            KernelNode("same", "aten._to_copy.default", (Ref("codes"),)),
            KernelNode("other", "aten.add.Tensor", (Ref("codes"), 1)),
        ),
        ("same", "other"),
    )
    second = KernelGraph(
        (TABLE, CODES), (KernelNode("r", "aten.embedding.default", (Ref("table"), Ref("codes"))),), ("r",)
    )
    through = pef_of((("c",), ("same", "other")), (("t", "same"), ("r",)))
    assert find_tables(through, {"0": first, "1": second}, [0, 1], ["c"]) == {"c": 20}
    computed = pef_of((("c",), ("same", "other")), (("t", "other"), ("r",)))
    assert find_tables(computed, {"0": first, "1": second}, [0, 1], ["c"]) == {}


SIGNATURE = ServedSignature(
    (ServedTensor("codes", "INT64", (2,), "c", 20), ServedTensor("any", "INT64", (), "a")),
    (ServedTensor("y", "FP32", (1,), "y"),), 4, 4,
)  # fmt: skip


def request(*codes: int, datatype: str = "INT64", form: str = "q") -> InferRequest:
    data = struct.pack(f"<{len(codes)}{form}", *codes)
    return InferRequest([RawTensor("codes", datatype, (1, 2), data), RawTensor("any", "INT64", (1,), bytes(8))])


@pytest.mark.parametrize(("codes", "wrong"), [((0, 20), 20), ((-1, 3), -1), ((2**63 - 1, 0), 2**63 - 1)])
def test_a_number_beyond_the_table_is_refused(codes: tuple[int, int], wrong: int) -> None:
    with pytest.raises(InvalidArgument, match=f"input 'codes': {wrong} is not valid; expected 0 to 19"):
        check_indices(SIGNATURE, request(*codes))


def test_what_is_wrong_in_another_way_is_left_to_the_check_of_the_request() -> None:
    check_indices(SIGNATURE, request(0, 19))
    check_indices(SIGNATURE, request(99, datatype="INT32", form="i"))
    check_indices(SIGNATURE, request(99, 99, 99, form="h"))
    check_indices(SIGNATURE, InferRequest([RawTensor("nothing", "INT64", (1,), bytes(8))]))
    assert SIGNATURE.has_indices
    assert ServedSignature.from_json(SIGNATURE.to_json()) == SIGNATURE
