"""Answers over gRPC with raw contents: written in two parts, they are the message that they would be as one."""

import pytest

from rdukit.proto import inference_pb2 as pb
from rdukit_serving.rpc import codec as module
from rdukit_serving.rpc.codec import RawAnswers, render_infer
from rdukit_serving.signature import InferRequest, InferResponse, RequestTiming, ServedSignature, ServedTensor
from support import shows

pytestmark = shows("inference")

OUTPUTS = (ServedTensor("scores", "FP32", (3,), "a"), ServedTensor("flags", "BOOL", (), "b"))
SIGNATURE = ServedSignature((), OUTPUTS, 8, 8)


def answer_of(rows: int, *names: str) -> InferResponse:
    """Bytes that differ from each other, for these outputs."""
    sizes = {"scores": 12, "flags": 1}
    data = [bytes((at + rows) % 256 for at in range(rows * sizes[name])) for name in names]
    return InferResponse(rows, data, names, RequestTiming(rows, 2, 3 * rows, 4))


def test_answers_in_two_parts_are_the_whole_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FORMS", 2)  # more forms than are remembered
    answers = RawAnswers("box", "7", SIGNATURE, 1234)
    for _ in range(2):
        for rows in (1, 8, 3):
            for names in (("scores", "flags"), ("flags",), ("scores",)):
                request, answer = InferRequest([], names, "" if rows == 3 else f"r{rows}"), answer_of(rows, *names)
                whole = render_infer("box", "7", SIGNATURE, request, answer, is_raw=True, load_us=1234)
                found = pb.ModelInferResponse.FromString(answers.render(request, answer))
                assert found == whole
                assert [list(tensor.shape) for tensor in found.outputs] == [
                    [rows, 3] if name == "scores" else [rows] for name in names
                ]
                assert list(found.raw_output_contents) == list(answer.outputs)
                assert {key: value.int64_param for key, value in found.parameters.items()} == {
                    "load_us": 1234, "compile_us": 0, "queue_us": rows, "compute_us": 6 + 3 * rows,
                }  # fmt: skip
