"""One inference over REST: what its headers and body ask for is checked and queued, and the answer written. No waiting.

Source: Open Inference Protocol v2, "HTTP/REST"; Triton's extensions for binary data and classification.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import orjson

from rdukit.errors import InvalidArgument, RdukitError, RequestTooLarge
from rdukit.settings import resolve
from rdukit_modelbox.serving.access import Access
from rdukit_modelbox.serving.access_log import AccessLog
from rdukit_modelbox.serving.classification import classify
from rdukit_modelbox.serving.model_version import ModelVersion
from rdukit_modelbox.serving.requests import InferAnswer, Reply
from rdukit_modelbox.serving.rest_codec import RestRequest, check_forms, needs_form_check, parse_infer, render_infer
from rdukit_modelbox.serving.settings import MAX_INFER_BYTES

Header = tuple[bytes, bytes]

JSON: Final = (b"content-type", b"application/json")
_BINARY: Final = (b"content-type", b"application/octet-stream")


class QueuedInference(NamedTuple):
    """A request that waits for the device."""

    name: str
    version: ModelVersion
    request: RestRequest


class RestInference:
    """The steps of one inference; ``most_bytes`` is the longest body."""

    def __init__(self, access: Access, access_log: AccessLog) -> None:
        self._access = access
        self._log = access_log
        self.most_bytes: int = resolve(MAX_INFER_BYTES)

    def read_headers(self, headers: Iterable[Header]) -> int | None:
        """Let the caller in; bytes of the body's JSON part if binary tensors follow it.

        Raises:
            Unauthenticated: no token that the box knows. InvalidArgument: an encoding that is not served.
        """
        length, authorization = None, None
        for key, value in headers:
            if key == b"inference-header-content-length":
                length = _number(value)
            elif key == b"authorization":
                authorization = value
            elif key == b"content-encoding":
                raise InvalidArgument(
                    f"Content-Encoding {value.decode('latin-1')!r} is not served; send the body as it is"
                )
        self._access.check(authorization)
        return length

    def check_size(self, size: int) -> None:
        """Raises ``RequestTooLarge`` for a body that is longer than the setting allows."""
        if size > self.most_bytes:
            raise RequestTooLarge(f"the body is longer than {self.most_bytes} bytes (box.max_infer_bytes)")

    def queue(
        self, name: str, version: ModelVersion, body: bytes, header_length: int | None, reply: Reply
    ) -> QueuedInference:
        """Check the body and queue the request for ``reply``.

        Raises:
            InvalidArgument: it is not one that the signature allows. Overloaded: too many wait.
            Unavailable: the version is not loaded.
        """
        signature = version.signature
        try:
            request = parse_infer(body, header_length)
            if needs_form_check(signature):
                check_forms(signature, request)
        except InvalidArgument:
            version.statistics.count_failed(1)
            raise
        version.enqueue(request, reply)
        return QueuedInference(name, version, request)

    def answer(self, queued: QueuedInference, answer: InferAnswer) -> tuple[list[Header], bytes]:
        """Headers without the length, and the body."""
        name, version, request = queued
        signature = version.signature
        if request.classes:
            signature, answer = classify(signature, answer, request.classes)
        text, length = render_infer(name, version.version, signature, request, answer)
        timing = answer.timing
        if self._log.is_on:
            self._log.add("rest", name, version.version, 200, answer.rows, timing.queue, timing.compute)
        # Milliseconds; nothing is compiled for a request. Source: W3C Server Timing.
        work = (timing.copy_in + timing.compute + timing.copy_out) / 1000
        spent = (timing.queue / 1000, work, version.load_seconds * 1000)
        headers = [
            JSON if length is None else _BINARY,
            (b"server-timing", b"queue;dur=%.3f, compute;dur=%.3f, load;dur=%.0f, compile;dur=0" % spent),
        ]
        if length is not None:
            headers.append((b"inference-header-content-length", b"%d" % length))
        return headers, text

    def refuse(self, name: str, error: RdukitError) -> bytes:
        """The body for a request that was not legal or could not be answered."""
        if self._log.is_on:
            self._log.add("rest", name, "", error.http_status, 0, 0, 0)
        return orjson.dumps({"error": error.message})


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > 12:
        raise InvalidArgument(
            f"Inference-Header-Content-Length {text.decode('latin-1')!r} is not legal; legal: a number"
        )
    return int(text)
