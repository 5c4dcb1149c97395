"""Objects of an S3 bucket, below a prefix, by boto3. Endpoint, region and credentials come from the usual AWS variables
and files; rdukit never logs or shows them.

Refusals of S3 become ``NotFound`` for a missing object, and ``StoreUnavailable`` for everything else, which the
operator can repair. Messages have S3's codes, but not its texts.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from importlib import import_module
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from prometheus_client import Counter

from rdukit.errors import NotFound, StoreUnavailable
from rdukit_platform.artifacts.store import BLOCK
from rdukit_platform.setting_texts import read_bucket

REQUESTS: Final = Counter(
    "rdukit_store_requests", "Requests to the bucket of artifacts; status 0: no answer.", ["operation", "status"]
)
BYTES: Final = Counter("rdukit_store_bytes", "Bytes read from and written to the bucket of artifacts.", ["direction"])

CONNECT_S: Final = 5.0
READ_S: Final = 60.0
#: Timeout in seconds of a health check.
BRISK_S: Final = 2.0
#: Attempts of one request by boto3, and of an interrupted read.
TRIES: Final = 4
#: Bytes per part of a large object; parts are larger if there would be too many.
PART_BYTES: Final = 16 << 20
MAX_PARTS: Final = 10_000
MAX_DELETED: Final = 1000

_NO_KEY: Final = frozenset({"404", "NoSuchKey", "NotFound"})
_SKEW: Final = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_FORBIDDEN: Final = frozenset({
    "401", "403", "AccessDenied", "AllAccessDisabled", "AuthFailure", "ExpiredToken", "InvalidAccessKeyId",
    "InvalidToken", "SignatureDoesNotMatch", "AccountProblem",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """An object of a list. ``written_at``: seconds since the epoch by the server's clock."""

    key: str
    bytes: int
    etag: str
    written_at: float


class _Gone(StoreUnavailable):
    """The parts of an unfinished object no longer exist."""


class Bucket:
    """Objects below a prefix of one bucket; keys are relative to it. Thread-safe, but not fork-safe."""

    def __init__(self, address: str, tries: int = TRIES) -> None:
        """Parse ``s3://BUCKET/PREFIX``; the first request is made when needed.

        Raises:
            ValueError: ``address`` has another form.
        """
        self.name, self._prefix = read_bucket(address)
        self.address = f"s3://{self.name}/{self._prefix}".rstrip("/")
        self._tries = tries
        #: Server's clock minus this machine's, in seconds, from its last answer, which has whole seconds.
        self.clock_offset_s = 0.0

    def put(self, key: str, data: bytes) -> None:
        """Write an object atomically."""
        with self._telling(key):
            self._client.put_object(Bucket=self.name, Key=self._prefix + key, Body=data)
        BYTES.labels("written").inc(len(data))

    def read(self, key: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Yield an object's bytes in blocks; an interrupted read is continued.

        Raises:
            NotFound: there is no such object; raised at the first block.
        """
        tries, last = self._tries, None if length is None else start + length
        if length == 0:
            return
        while True:
            began = start
            try:
                for block in self._get(key, start, last):
                    start += len(block)
                    BYTES.labels("read").inc(len(block))
                    yield block
                return
            except StoreUnavailable:
                tries = self._tries if start > began else tries - 1
                if tries <= 0 or not start:
                    raise
                time.sleep(0.2)

    def list(self, prefix: str) -> Iterator[ObjectEntry]:
        """Yield the objects below a prefix, in the order of their keys."""
        with self._telling(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.name, Prefix=self._prefix + prefix
            )
            for page in pages:
                for entry in page.get("Contents", ()):
                    key = str(entry["Key"]).removeprefix(self._prefix)
                    yield ObjectEntry(key, int(entry["Size"]), str(entry["ETag"]), _seconds(entry["LastModified"]))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are no error."""
        for first in range(0, len(keys), MAX_DELETED):
            some = [{"Key": self._prefix + key} for key in keys[first : first + MAX_DELETED]]
            with self._telling(keys[first]):
                if len(some) == 1:
                    self._client.delete_object(Bucket=self.name, Key=some[0]["Key"])
                    continue
                answer = self._client.delete_objects(Bucket=self.name, Delete={"Objects": some, "Quiet": True})
                for error in answer.get("Errors", ()):
                    raise self._refusal(str(error.get("Code")), keys[first])

    def open_parts(self, key: str, size: int | None = None) -> "ObjectParts":
        """Begin a multipart upload; the object appears when it is finished. ``size``: bytes, if known."""
        with self._telling(key):
            upload = self._client.create_multipart_upload(Bucket=self.name, Key=self._prefix + key)
        return ObjectParts(self, key, str(upload["UploadId"]), max(PART_BYTES, -(-(size or 0) // (MAX_PARTS - 1))))

    def unfinished(self, prefix: str) -> Iterator[tuple[str, str, float]]:
        """Yield key, id and start, by the server's clock, of unfinished multipart uploads."""
        with self._telling(prefix):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.name, Prefix=self._prefix + prefix
            )
            for page in pages:
                for entry in page.get("Uploads", ()):
                    key = str(entry["Key"])
                    if key.startswith(self._prefix + prefix):
                        yield key.removeprefix(self._prefix), str(entry["UploadId"]), _seconds(entry["Initiated"])

    def abort(self, key: str, upload_id: str) -> None:
        """Abort an unfinished multipart upload."""
        with suppress(_Gone), self._telling(key):
            self._client.abort_multipart_upload(Bucket=self.name, Key=self._prefix + key, UploadId=upload_id)

    def call(self, operation: str, key: str, **values: object) -> Mapping[str, Any]:
        """Call an operation of a multipart upload."""
        with self._telling(key):
            answer: Mapping[str, Any] = getattr(self._client, operation)(
                Bucket=self.name, Key=self._prefix + key, **values
            )
        return answer

    def is_up(self) -> bool:
        """Return whether the server lists the bucket now, with one attempt and a short timeout."""
        try:
            with self._telling(""):
                self._brisk_client.list_objects_v2(Bucket=self.name, Prefix=f"{self._prefix}holds/", MaxKeys=1)
        except (StoreUnavailable, NotFound):
            return False
        return True

    @property
    def endpoint(self) -> str:
        """Return host and port of the server."""
        return urlsplit(str(self._client.meta.endpoint_url)).netloc.rpartition("@")[2]

    @cached_property
    def _client(self) -> Any:
        return self._connect(CONNECT_S, READ_S, self._tries)

    @cached_property
    def _brisk_client(self) -> Any:
        return self._connect(BRISK_S, BRISK_S, 1)

    def _connect(self, connect_s: float, read_s: float, tries: int) -> Any:
        try:
            session, config = import_module("boto3").session, import_module("botocore.config")
        except ImportError as cause:
            raise StoreUnavailable(
                f"{self.address} needs boto3, which is not installed: pip install 'rdukit[s3]'"
            ) from cause
        exceptions = import_module("botocore.exceptions")
        try:
            # boto3 itself reads AWS_DEFAULT_REGION only, where all other programs for S3 take AWS_REGION.
            client = session.Session(region_name=os.environ.get("AWS_REGION") or None).client(
                "s3",
                config=config.Config(
                    connect_timeout=connect_s, read_timeout=read_s, max_pool_connections=32,
                    retries={"mode": "standard", "total_max_attempts": tries},
                ),
            )  # fmt: skip
        except (exceptions.BotoCoreError, ValueError) as cause:
            raise StoreUnavailable(
                f"{self.address} is not configured ({type(cause).__name__}); set AWS_REGION, and outside Amazon also "
                "AWS_ENDPOINT_URL_S3, for gateway, scheduler and workers"
            ) from cause
        client.meta.events.register("after-call.s3", self._heard)
        client.meta.events.register("after-call-error.s3", _not_heard)
        return client

    def _heard(self, http_response: Any = None, model: Any = None, **_: object) -> None:
        REQUESTS.labels(model.name, str(http_response.status_code)).inc()
        with suppress(KeyError, TypeError, ValueError):
            self.clock_offset_s = parsedate_to_datetime(http_response.headers["Date"]).timestamp() - time.time()

    def _get(self, key: str, start: int, end: int | None) -> Iterator[bytes]:
        asked = {"Range": f"bytes={start}-{'' if end is None else end - 1}"} if start or end is not None else {}
        with self._telling(key):
            answer = self._client.get_object(Bucket=self.name, Key=self._prefix + key, **asked)
            left, body = int(answer["ContentLength"]), answer["Body"]
            try:
                for block in body.iter_chunks(BLOCK):
                    left -= len(block)
                    yield block
            finally:
                body.close()
        if left > 0:
            raise StoreUnavailable(f"{self.address} broke off {left} bytes before the end of {key}")

    @contextmanager
    def _telling(self, key: str) -> Iterator[None]:
        """Convert boto3's errors to rdukit's."""
        assert self._client  # without a client boto3 may not be installed
        exceptions = import_module("botocore.exceptions")
        try:
            yield
        except exceptions.ClientError as cause:
            raise self._refusal(str(cause.response.get("Error", {}).get("Code", "")), key) from cause
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as cause:
            raise StoreUnavailable(
                f"there are no credentials for {self.address}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                "AWS_SHARED_CREDENTIALS_FILE, for gateway, scheduler and workers"
            ) from cause
        except (exceptions.BotoCoreError, exceptions.HTTPClientError) as cause:
            raise StoreUnavailable(
                f"{self.address} at {self.endpoint} does not answer ({type(cause).__name__}); jobs wait for it, and "
                "requests can be sent again; check that the server is up and AWS_ENDPOINT_URL_S3 names it"
            ) from cause

    def _refusal(self, code: str, key: str) -> NotFound | StoreUnavailable:
        if code in _NO_KEY:
            return NotFound(f"{self.address} has no object {key}")
        if code == "NoSuchUpload":
            return _Gone(f"the parts of {key} in {self.address} were aborted meanwhile; send them again")
        if code == "NoSuchBucket":
            return StoreUnavailable(
                f"there is no bucket {self.name!r} at {self.endpoint}; create it, or name another in artifacts.store"
            )
        if code in _SKEW:
            return StoreUnavailable(
                f"{self.address} refuses this machine's clock, which is {-self.clock_offset_s:.0f} s ahead of the "
                f"server's ({code}); set it by NTP"
            )
        if code in _FORBIDDEN:
            return StoreUnavailable(
                f"{self.address} refuses these credentials ({code}); they need s3:GetObject, PutObject, DeleteObject, "
                "ListBucket, AbortMultipartUpload, ListBucketMultipartUploads"
            )
        return StoreUnavailable(f"{self.address} at {self.endpoint} answers {code or 'an error'}; try again later")


class ObjectParts:
    """A multipart upload. The object does not exist before ``finish``; a sweep removes abandoned uploads."""

    def __init__(self, bucket: Bucket, key: str, upload_id: str, part_bytes: int) -> None:
        self._bucket, self._key, self._id = bucket, key, upload_id
        self.part_bytes = part_bytes
        self._parts: list[dict[str, object]] = []

    def add(self, part: bytes) -> None:
        """Send a part of ``part_bytes`` bytes; the last may be shorter."""
        number = len(self._parts) + 1
        answer = self._bucket.call("upload_part", self._key, UploadId=self._id, PartNumber=number, Body=part)
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"]})
        BYTES.labels("written").inc(len(part))

    def finish(self) -> None:
        """Finish the upload; the object then exists."""
        self._bucket.call(
            "complete_multipart_upload", self._key, UploadId=self._id, MultipartUpload={"Parts": self._parts}
        )

    def give_up(self) -> None:
        """Abort the upload; if that fails, a sweep removes it later."""
        with suppress(StoreUnavailable):
            self._bucket.abort(self._key, self._id)


def read_part(stream: BinaryIO, size: int) -> bytes:
    """Read ``size`` bytes from a stream, or fewer at its end."""
    found = bytearray()
    while len(found) < size and (block := stream.read(min(BLOCK, size - len(found)))):
        found += block
    return bytes(found)


def _seconds(at: datetime) -> float:
    return at.timestamp()


def _not_heard(event_name: str = "", **_: object) -> None:
    REQUESTS.labels(event_name.rpartition(".")[2], "0").inc()
