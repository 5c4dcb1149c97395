"""Requests against a signature: what is wrong is refused, with the field and what would be legal."""

import pytest

from rdukit.errors import InvalidArgument
from rdukit_serving.checks import check_request
from rdukit_serving.signature import InferRequest, RawTensor, ServedSignature, ServedTensor
from support import shows

pytestmark = shows("inference")

SIGNATURE = ServedSignature(
    (ServedTensor("x", "FP32", (4,), "x"), ServedTensor("mask", "INT64", (), "mask")),
    (ServedTensor("y", "FP32", (2,), "y"), ServedTensor("z", "FP16", (3, 2), "z")),
    batch=8,
    max_batch=6,
)


def given(rows: int = 2, **changes: object) -> InferRequest:
    x = RawTensor("x", "FP32", (rows, 4), bytes(16 * rows))
    mask = RawTensor("mask", "INT64", (rows,), bytes(8 * rows))
    return InferRequest([x._replace(**changes), mask])  # type: ignore[arg-type]


def test_a_legal_request_has_its_rows_counted() -> None:
    assert check_request(SIGNATURE, given(6)) == 6


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "wrong"}, "no input 'wrong'; expected x"),
        ({"datatype": "FP64"}, "datatype 'FP64' is not valid; expected FP32"),
        ({"datatype": "FLOAT"}, "no such datatype"),
        ({"shape": (2, 5)}, r"shape \[2, 5\] is not valid"),
        ({"shape": (-1, 4)}, "-1 rows; expected 1 to 6"),
        ({"shape": (0, 4)}, "0 rows"),
        ({"shape": (7, 4), "data": bytes(112)}, "7 rows; expected 1 to 6"),
        ({"shape": (8,)}, "not valid"),
        ({"data": bytes(28)}, "data has 7 elements, shape .* needs 8"),
        ({"data": bytes(30)}, "data has 30 bytes"),
        ({"shape": (1, 4), "data": bytes(16)}, "'mask' has 2 rows, but 'x' has 1"),
    ],
)
def test_a_wrong_tensor_is_refused_by_name(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        check_request(SIGNATURE, given(**changes))  # type: ignore[arg-type]


def test_missing_repeated_and_no_inputs_are_refused() -> None:
    request = given()
    with pytest.raises(InvalidArgument, match="'mask' missing"):
        check_request(SIGNATURE, InferRequest(request.inputs[:1]))
    with pytest.raises(InvalidArgument, match="more than once"):
        check_request(SIGNATURE, InferRequest([request.inputs[0]] * 2))
    with pytest.raises(InvalidArgument, match="more than once"):
        check_request(SIGNATURE, InferRequest([*request.inputs, request.inputs[0]]))
    with pytest.raises(InvalidArgument, match="'x', 'mask' missing"):
        check_request(SIGNATURE, InferRequest([]))


def test_outputs_must_exist_once() -> None:
    request = given()
    request.outputs = ("z",)
    assert check_request(SIGNATURE, request) == 2
    request.outputs = ("nope",)
    with pytest.raises(InvalidArgument, match=r"no output 'nope'; expected y .*, z"):
        check_request(SIGNATURE, request)
    request.outputs = ("y", "y")
    with pytest.raises(InvalidArgument, match="more than once"):
        check_request(SIGNATURE, request)


def test_tensors_do_not_overlap_in_shared_memory() -> None:
    places = sorted((at, name) for name, at in SIGNATURE.offsets.items() if name)
    assert [name for _, name in places] == ["x", "mask", "output/y", "output/z"]
    assert [at for at, _ in places] == [0, 128, 192, 256]
    assert SIGNATURE.shared_bytes == 256 + 128
    assert ServedSignature.from_json(SIGNATURE.to_json()) == SIGNATURE
