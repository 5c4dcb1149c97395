"""The platform's REST API, for commands and for ``Platform``: requests, streams and transfers as plain JSON values."""

import hashlib
import logging
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import httpx

from rdukit.box.sse import EVENT_STREAM, read_events
from rdukit.errors import (
    Conflict,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    RangeNotSatisfiable,
    RdukitError,
    Unavailable,
    error_from_body,
)
from rdukit.files.atomic import sha256_of_file
from rdukit.files.tree import TreeFile
from rdukit.http.answers import MAX_ANSWER_BYTES, PLAIN, read_bounded, refuse_packed
from rdukit.http.tls import verify_of
from rdukit.interfaces import Closable
from rdukit.strict_json import find_infinite
from rdukit_platform.catalog.model import read_box_folder
from rdukit_platform.client.contexts import find_place
from rdukit_platform.settings import Home, current_home

FINAL_STATES: Final = frozenset({"succeeded", "failed", "cancelled"})
MAX_REATTACH: Final = 20
#: Largest number of bytes of a file's name in the name of its partial file, within the limit of file systems.
MAX_SHOWN_BYTES: Final = 200
#: Timeout of a health check; the gateway's own checks of broker and database are shorter.
HEALTH_S: Final = 10.0
#: Seconds of silence after which a stream is opened again; the gateway sends a comment every 10 s.
SILENCE_S: Final = 60.0
#: Pauses before retries of a repeatable request, if the gateway had answered before.
RETRY_PAUSES_S: Final = (0.0, 0.1, 0.5, 2.0, 5.0)
#: Largest number of successive waits for a rate limit, and longest wait in seconds.
MAX_RATE_WAITS: Final = 5
MAX_RATE_PAUSE_S: Final = 60.0


logger = logging.getLogger(__name__)


class ApiClient(Closable):
    """Client of a gateway."""

    def __init__(
        self,
        url: str,
        token: str,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url
        #: Function that sleeps, to match the transport.
        self.sleep = sleep
        #: Whether the gateway has answered before; an unreachable one is then assumed to restart.
        self._was_answered = False
        #: Whether a request has succeeded; work under way then waits for rate limits.
        self._was_served = False
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}", **PLAIN},
            timeout=httpx.Timeout(60.0, connect=5.0),
            trust_env=False,
            transport=transport,
            verify=verify_of(url),
        )

    @classmethod
    def of_home(
        cls,
        home: Home | None = None,
        url: str | None = None,
        token: str | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        context: str | None = None,
    ) -> Self:
        """Return a client with the given address and token, or those of ``find_place``. Raises as ``find_place``."""
        place = find_place(home or current_home(), url, token, context)
        return cls(place.url, place.token, transport, sleep)

    def get(self, path: str, /, **parameters: str | int | Sequence[str] | None) -> dict[str, Any]:
        """Send ``GET``; parameters that are ``None`` are left out.

        Raises:
            RdukitError: the gateway refused; the error's code determines the class.
            Unavailable: the gateway does not answer.
        """
        return self._call("GET", path, params={k: v for k, v in parameters.items() if v is not None})

    def read_health(self) -> dict[str, Any]:
        """Return the gateway's report on the platform's parts, even if some are unreachable. Raises as ``get``."""
        answer = self._request("GET", "/health", {"timeout": HEALTH_S})
        try:
            body = answer.json()
        except ValueError:
            body = None
        if isinstance(body, dict) and isinstance(body.get("parts"), dict):
            return body
        check_answer(answer)
        raise Unavailable(f"{self.url} is not a gateway, because its /health reports no parts")

    def post(self, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Send ``POST`` with a JSON body. Raises as ``get``."""
        return self._call("POST", path, json=dict(body or {}))

    def submit(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Send a job or pipeline under an idempotency key (a new one if the body has none).

        After a broken connection it is sent again; the request is recorded only once. Raises as ``get``.
        """
        key = body.get("idempotency_key") or uuid.uuid4().hex
        return self._call("POST", path, json={**body, "idempotency_key": key})

    def patch(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Send ``PATCH`` with a JSON body. Raises as ``get``."""
        return self._call("PATCH", path, json=dict(body))

    def put(self, path: str) -> dict[str, Any]:
        """Send ``PUT`` without a body. Raises as ``get``."""
        return self._call("PUT", path)

    def delete(self, path: str) -> dict[str, Any]:
        """Send ``DELETE``. Raises as ``get``."""
        return self._call("DELETE", path)

    def upload(
        self, files: Sequence[tuple[str, BinaryIO]], form: Mapping[str, str], path: str = "/v1/artifacts"
    ) -> dict[str, Any]:
        """Upload files, by default to add an artifact. Raises as ``get``."""
        return self._call("POST", path, files=[("files", file) for file in files], data=dict(form))

    def upload_pieces(
        self, files: Sequence[TreeFile], kind: str, name: str, empty_folders: Sequence[str] = (), *, is_folder: bool
    ) -> dict[str, Any]:
        """Add an artifact in pieces; an interrupted upload of the same files is continued. Raises as ``get``.

        Raises:
            Unavailable: the gateway stays unreachable; received pieces are kept for a day.
        """
        described = [
            {"path": file.name, "bytes": file.path.stat().st_size, "digest": sha256_of_file(file.path)}
            | ({"executable": True} if is_folder and file.is_executable else {})
            for file in files
        ]
        body = {"kind": kind, "name": name, "folder": is_folder, "files": described}
        upload = self._call(
            "POST", "/v1/uploads", json=body | ({"empty_folders": list(empty_folders)} if empty_folders else {})
        )
        sources = {file.name: file.path for file in files}
        for numbers in _runs([file["bytes"] for file in upload["files"]], upload["piece_bytes"]):
            if len(numbers) > 1:
                self._send_files(upload, numbers, sources)
                continue
            with sources[upload["files"][numbers[0]]["path"]].open("rb") as stream:
                self._send_file(upload, numbers[0], stream)
        return self._persist("POST", f"/v1/uploads/{upload['id']}/finish")

    def _send_files(self, upload: Mapping[str, Any], numbers: range, sources: Mapping[str, Path]) -> None:
        """Send complete files in one request, unless they were received already."""
        files = [upload["files"][number] for number in numbers]
        if all(file["offset"] == file["bytes"] for file in files):
            return
        data = b"".join(sources[file["path"]].read_bytes() for file in files)
        if len(data) != sum(file["bytes"] for file in files):
            raise Conflict(f"files from {files[0]['path']} on changed during the upload; send them again")
        self._persist("PUT", f"/v1/uploads/{upload['id']}/files", params={"first": numbers[0]}, content=data)

    def _send_file(self, upload: Mapping[str, Any], number: int, stream: BinaryIO) -> None:
        file = upload["files"][number]
        path, offset = f"/v1/uploads/{upload['id']}/files/{number}", file["offset"]
        while offset < file["bytes"]:
            stream.seek(offset)
            piece = stream.read(upload["piece_bytes"])
            if not piece:
                raise Conflict(f"{file['path']} became shorter during the upload; send it again")
            try:
                offset = self._persist("PUT", path, params={"offset": offset}, content=piece)["offset"]
            except Conflict as other:  # a piece was received, but its answer was lost
                if not isinstance(other.detail.get("offset"), int):
                    raise
                offset = other.detail["offset"]

    def _persist(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        for tries_left in range(MAX_REATTACH, -1, -1):
            try:
                return self._call(method, path, **arguments)
            except Unavailable:
                if not tries_left:
                    raise
                self.sleep(0.5)
        raise AssertionError

    def install_box(self, folder: Path) -> dict[str, Any]:
        """Install the box in ``folder``, or find that its newest version has this content. Raises as ``get``.

        Raises:
            InvalidArgument: the folder contains a link, or is too large.
        """
        with ExitStack() as stack:
            files = [(name, stack.enter_context(path.open("rb"))) for name, path in read_box_folder(folder)]
            return self.upload(files, {}, "/v1/boxes")

    def install_image(self, image: str) -> dict[str, Any]:
        """Install the box in an image of the job boxes' container engine. Raises as ``get``."""
        return self._call("POST", "/v1/boxes", data={"image": image})

    def download(self, path: str, target: BinaryIO, digest: str = "", /, **parameters: str) -> None:
        """Write the answer's bytes to ``target``. Raises as ``get``.

        Args:
            digest: the SHA-256 that they must have.
        Raises:
            Unavailable: the answer was cut off, or other bytes came.
        """
        found = hashlib.sha256()
        try:
            with self._stream(path, parameters, {}) as answer:
                for block in answer.iter_bytes():
                    found.update(block)
                    target.write(block)
        except httpx.HTTPError as cause:
            raise Unavailable(f"the gateway at {self.url} broke off {path} ({cause}); fetch it again") from cause
        if digest and found.hexdigest() != digest:
            raise Unavailable(f"{path} arrived with the SHA-256 {found.hexdigest()}, not {digest}; fetch it again")

    def fetch_file(self, path: str, target: Path, digest: str, /, **parameters: str) -> None:
        """Write the answer's bytes to ``target``, which appears only when complete. Raises as ``get``.

        This call or the next one continues an interrupted download; the partial file lies next to ``target``.

        Raises:
            Unavailable: the gateway stays unreachable, or the bytes do not match ``digest``.
        """
        part = name_part(target, digest)
        part.parent.mkdir(parents=True, exist_ok=True)
        began = before = part.stat().st_size if part.exists() else 0
        failures = 0
        while True:
            try:
                self._append(path, part, digest, parameters)
                break
            except RangeNotSatisfiable:
                break  # all bytes are there
            except (httpx.HTTPError, Unavailable) as cause:
                size = part.stat().st_size if part.exists() else 0
                failures, before = 0 if size > before else failures + 1, size
                if size == began or failures > MAX_REATTACH:
                    kept = f"; {size} bytes are kept, and the same command continues from there" if size else ""
                    raise Unavailable(f"the gateway at {self.url} broke off {path} ({cause}){kept}") from cause
                self.sleep(0.5)
        found = sha256_of_file(part)
        if found != digest:
            part.unlink()
            raise Unavailable(f"{path} arrived with the SHA-256 {found}, not {digest}; fetch it again")
        part.replace(target)

    def _append(self, path: str, part: Path, digest: str, parameters: Mapping[str, str]) -> None:
        have = part.stat().st_size if part.exists() else 0
        headers = {"If-Match": f'"{digest}"'} | ({"Range": f"bytes={have}-"} if have else {})
        with (
            self._stream(path, parameters, headers) as answer,
            part.open("ab" if answer.status_code == httpx.codes.PARTIAL_CONTENT else "wb") as out,
        ):
            for block in answer.iter_bytes():
                out.write(block)

    def lines(self, path: str, /, **parameters: str) -> Iterator[str]:
        """Yield the answer's lines as they come. Raises as ``get``."""
        with self._stream(path, parameters, {}) as answer:
            yield from answer.iter_lines()

    def follow(self, job_id: str, timeout_s: float | None = None) -> Iterator[dict[str, Any]]:
        """Yield a job's events until it ends; a broken stream is opened again. Raises as ``get``.

        Raises:
            DeadlineExceeded: the job has not ended within ``timeout_s``.
        """
        after, failures = 0, 0
        ends_at = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _left_s(job_id, ends_at, timeout_s)
            try:
                with self._stream(
                    f"/v1/jobs/{job_id}/events", {"after": str(after)}, {"Accept": EVENT_STREAM},
                    min(SILENCE_S, left_s),
                ) as answer:  # fmt: skip
                    for event in read_events(_within(answer.iter_lines(), job_id, ends_at, timeout_s)):
                        after, failures = int(event["sequence"]), 0
                        yield event
                return
            except (httpx.HTTPError, Unavailable) as cause:
                _left_s(job_id, ends_at, timeout_s)
                failures += 1
                if failures > MAX_REATTACH:
                    raise Unavailable(f"the gateway at {self.url} does not answer: {cause}") from cause
                self.sleep(0.5)

    def metrics(self, job_id: str) -> Iterator[dict[str, Any]]:
        """Yield the figures of each of a job's progress events, oldest first. Raises as ``get``."""
        after: int | None = 0
        while after is not None:
            page = self.get(f"/v1/jobs/{job_id}/metrics", after=after, limit=5000)
            yield from page["points"]
            after = page["next_after"]

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        strange = find_infinite(arguments.get("json"))
        if strange is not None:
            place, number = strange
            key = ".".join(map(str, place))
            raise InvalidArgument(f"{key} is {number}; expected a finite number")
        for waits_left in range(MAX_RATE_WAITS if self._was_served else 0, -1, -1):
            answer = self._request(method, path, arguments)
            pause_s = _rate_pause_s(answer) if waits_left else None
            if pause_s is None:
                break
            logger.warning("rate limit of the gateway; retrying in s=%.0f", pause_s)
            self.sleep(pause_s)
        check_answer(answer)
        self._was_served = True
        try:
            body: dict[str, Any] = answer.json()
        except ValueError as cause:
            raise Unavailable(
                f"{method} {path} was answered {answer.status_code} without JSON; check that {self.url} is a gateway "
                "and that no id is empty"
            ) from cause
        return body

    def _request(self, method: str, path: str, arguments: Mapping[str, Any]) -> httpx.Response:
        # A restarting gateway breaks its connections, and briefly accepts none.
        may_be_said_twice = method == "GET" or "idempotency_key" in arguments.get("json", ())
        pauses = iter(RETRY_PAUSES_S if may_be_said_twice else ())
        while True:
            try:
                sent = self._http.build_request(method, path, **arguments)
                answer = _read_whole(self._http.send(sent, stream=True))
            except httpx.HTTPError as cause:
                is_broken = isinstance(cause, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError)
                is_gone = isinstance(cause, httpx.ConnectError) and self._was_answered
                pause_s = next(pauses, None) if is_broken or is_gone else None
                if pause_s is None:
                    raise self._away(cause) from cause
                self.sleep(pause_s)
            else:
                self._was_answered = True
                return answer

    def pages(self, path: str, key: str, /, **parameters: str | int | Sequence[str] | None) -> Iterator[dict[str, Any]]:
        """Yield the items of a list under ``key``, page after page. Raises as ``get``."""
        cursor: str | None = None
        while True:
            page = self.get(path, cursor=cursor, **parameters)
            yield from page[key]
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def _stream(
        self, path: str, parameters: Mapping[str, str], headers: Mapping[str, str], silence_s: float = 60.0
    ) -> "_Stream":
        timeout = httpx.Timeout(silence_s, connect=5.0)
        return _Stream(self, self._http.stream("GET", path, params=parameters, headers=headers, timeout=timeout))

    def _away(self, cause: httpx.HTTPError) -> Unavailable:
        return Unavailable(f"no gateway answers at {self.url} ({cause}); start a platform with: rdukit up")


def _left_s(job_id: str, ends_at: float, timeout_s: float | None) -> float:
    left_s = ends_at - time.monotonic()
    if left_s <= 0:
        raise DeadlineExceeded(f"job {job_id} did not end within {timeout_s:g} s and continues; wait for it again")
    return left_s


def _within(lines: Iterator[str], job_id: str, ends_at: float, timeout_s: float | None) -> Iterator[str]:
    for line in lines:
        yield line
        _left_s(job_id, ends_at, timeout_s)


class _Stream:
    """A streamed answer that raises rdukit's errors."""

    def __init__(self, client: ApiClient, context: Any) -> None:
        self._client, self._context = client, context

    def __enter__(self) -> httpx.Response:
        try:
            answer: httpx.Response = self._context.__enter__()
        except httpx.HTTPError as cause:
            raise self._client._away(cause) from cause
        if answer.status_code >= 400:
            try:
                check_answer(_read_whole(answer))
            finally:
                self._context.__exit__(None, None, None)
        refuse_packed(answer.headers, "the gateway")
        return answer

    def __exit__(self, *details: Any) -> None:
        self._context.__exit__(*details)


def _read_whole(answer: httpx.Response) -> httpx.Response:
    """Return a streamed answer with its body, bounded and not decompressed, because boxes are not trusted."""
    try:
        refuse_packed(answer.headers, "the gateway")
        # the transport may have read it already
        blocks = [answer.content] if answer.is_stream_consumed else answer.iter_raw()
        body = read_bounded(blocks, MAX_ANSWER_BYTES, "the gateway")
    finally:
        answer.close()
    return httpx.Response(answer.status_code, headers=answer.headers, content=body, request=answer.request)


def _rate_pause_s(answer: httpx.Response) -> float | None:
    """Return the seconds to wait after a refusal by a rate limit; ``None``: another answer."""
    after = answer.headers.get("retry-after", "") if answer.status_code == httpx.codes.TOO_MANY_REQUESTS else ""
    return float(after) if after.isascii() and after.isdigit() and int(after) <= MAX_RATE_PAUSE_S else None


def check_answer(answer: httpx.Response) -> None:
    """Raise the error in an answer, if it has one."""
    if answer.status_code < 400:
        return
    try:
        body = answer.json()
    except ValueError as cause:
        raise Unavailable(f"the gateway answered {answer.status_code} without JSON") from cause
    if not isinstance(body, dict):
        raise Unavailable(f"the gateway answered {answer.status_code} with JSON that is not an object")
    said = body.get("error")
    if isinstance(said, str) and answer.status_code < 500:
        # The Open Inference protocol's error, as a box wrote it.
        raise NotFound(said) if answer.status_code == 404 else InvalidArgument(said)
    raise error_from_body({"error": {"message": said}} if isinstance(said, str) else body, RdukitError)


def name_part(target: Path, digest: str) -> Path:
    """Return the path of the partial file next to ``target``, where a later call finds it."""
    shown = target.name.encode()[:MAX_SHOWN_BYTES].decode(errors="ignore")
    return target.with_name(f".{shown}.{digest[:16]}.part")


def _runs(sizes: Sequence[int], most: int) -> Iterator[range]:
    """Yield ranges of successive files that fit into a piece together; a larger file comes alone (pure)."""
    start, total = 0, 0
    for number, size in enumerate(sizes):
        if number > start and total + size > most:
            yield range(start, number)
            start, total = number, 0
        total += size
    if sizes:
        yield range(start, len(sizes))
