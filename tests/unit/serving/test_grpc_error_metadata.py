"""What a refused gRPC call carries fits into what clients take: 8 KiB of trailing metadata, base64 included."""

import base64
import json
from urllib.parse import quote

import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo

from rdukit.errors import InvalidArgument, MalformedRequest, NotFound, RdukitError
from rdukit.rpc.errors import ERROR_METADATA, STATUS_METADATA, refusal_of, status_of
from support import shows

pytestmark = shows("errors", "wire")

#: What Java's and C's clients take by default.
ROOM = 8192


def size_on_the_wire(error: RdukitError) -> int:
    refusal = refusal_of(error)
    text = quote(refusal.message, safe="".join(chr(n) for n in range(0x20, 0x7F) if chr(n) != "%"))
    entries = [("grpc-message", text), *((key, base64.b64encode(value)) for key, value in refusal.metadata)]
    return sum(len(key) + len(value) + 32 for key, value in entries) + 200


@pytest.mark.parametrize("letter", ["x", "ü", "🎉", '"', "\\", "\n", "%", "\ud800"])
@pytest.mark.parametrize("count", [1, 300, 5000, 100_000])
def test_a_message_of_any_length_in_any_script_fits(letter: str, count: int) -> None:
    error = NotFound(f"no operation {letter * count!r}", field=letter * count, given=letter * count)
    assert size_on_the_wire(error) <= ROOM


def test_a_request_with_many_faults_fits_and_tells_the_first_ones() -> None:
    faults = [{"at": f"fäld.{n}" * 20, "message": "ü" * 2000} for n in range(50)]
    many = {f"k{n}" * 30: "ß" * 500 for n in range(40)}
    error = MalformedRequest("ü" * 9000, faults=faults, field="fäld.0", **many)
    assert size_on_the_wire(error) <= ROOM
    info, bad = ErrorInfo(), BadRequest()
    details = status_of(error).details
    assert details[0].Unpack(info)
    assert details[1].Unpack(bad)
    assert info.reason == "MALFORMED_REQUEST"
    assert bad.field_violations[0].field.startswith("fäld.0")


def test_what_is_short_is_told_in_full() -> None:
    error = InvalidArgument("a row has ü", field="rows", legal="784")
    refusal = refusal_of(error)
    assert refusal.message == "a row has ü"
    metadata = dict(refusal.metadata)
    assert set(metadata) == {STATUS_METADATA, ERROR_METADATA}
    body = json.loads(metadata[ERROR_METADATA])
    assert body["error"] == {
        "code": "invalid-argument", "message": "a row has ü", "detail": {"field": "rows", "legal": "784"},
        "request_id": None,
    }  # fmt: skip


def test_what_is_cut_says_so_and_keeps_its_field() -> None:
    refusal = refusal_of(NotFound("ü" * 5000, field="id", given="ü" * 5000))
    assert refusal.message.endswith("...")
    assert json.loads(dict(refusal.metadata)[ERROR_METADATA])["error"]["detail"] == {"field": "id"}
