"""Bytes from and to S3, by boto3: endpoint, region and credentials from the usual AWS variables and files."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from rdukit.errors import NotFound, PermissionDenied, RdukitError, Unavailable
from rdukit_modelbox.artifacts.download import Opened, TransferInterrupted

BLOCK: Final = 1 << 20
_MISSING: Final = frozenset({"404", "NoSuchKey", "NoSuchBucket", "NotFound"})
_FORBIDDEN: Final = frozenset({
    "403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "AuthFailure",
})  # fmt: skip


def make_client(timeout_s: float) -> Any:
    """Return a client configured by the environment: ``AWS_ENDPOINT_URL``, ``AWS_REGION``, ``AWS_ACCESS_KEY_ID``, ….

    Raises:
        Unavailable: boto3 is not installed, or its configuration is wrong.
    """
    try:
        boto3, config = import_module("boto3"), import_module("botocore.config")
    except ImportError as cause:
        raise Unavailable("s3:// needs boto3, which is not installed: pip install 'rdukit[s3]'") from cause
    try:
        # boto3 itself reads AWS_DEFAULT_REGION only.
        return boto3.client(
            "s3",
            region_name=os.environ.get("AWS_REGION") or None,
            config=config.Config(
                connect_timeout=timeout_s, read_timeout=timeout_s, retries={"mode": "standard", "max_attempts": 3}
            ),
        )
    except (import_module("botocore.exceptions").BotoCoreError, ValueError) as cause:
        raise Unavailable(f"s3:// is not configured: {cause}; set AWS_REGION and AWS_ENDPOINT_URL") from cause


class S3Source:
    """An object."""

    def __init__(self, client: Any, bucket: str, key: str) -> None:
        self._client = client
        self._bucket = bucket
        self._key = key
        self._uri = f"s3://{bucket}/{key}"

    def open(self, start: int, validator: str | None) -> Opened:
        """``Source.open``."""
        asked: dict[str, str] = {"Bucket": self._bucket, "Key": self._key}
        if start and validator is not None:
            asked |= {"Range": f"bytes={start}-", "IfMatch": validator}
        else:
            start = 0
        with _errors(self._uri):
            answer = self._client.get_object(**asked)
        size = start + int(answer["ContentLength"])
        return Opened(start, size, str(answer["ETag"]), self._blocks(answer["Body"], size - start))

    def find_validator(self) -> str | None:
        """``Source.find_validator``."""
        try:
            with _errors(self._uri):
                return str(self._client.head_object(Bucket=self._bucket, Key=self._key)["ETag"])
        except (TransferInterrupted, Unavailable, NotFound):
            return None

    def _blocks(self, body: Any, left: int) -> Iterator[bytes]:
        try:
            with _errors(self._uri):
                for block in body.iter_chunks(BLOCK):
                    left -= len(block)
                    yield block
        finally:
            body.close()
        if left > 0:
            raise TransferInterrupted(f"cut {left} bytes before the end")


def list_objects(client: Any, bucket: str, prefix: str) -> dict[str, tuple[int, str]]:
    """Return size and ETag of each key below ``prefix``; markers of folders are left out.

    Raises:
        NotFound: no bucket, or nothing below the prefix.
        Unavailable: S3 does not answer.
    """
    found: dict[str, tuple[int, str]] = {}
    try:
        with _errors(f"s3://{bucket}/{prefix}"):
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
                for entry in page.get("Contents", ()):
                    name = str(entry["Key"]).removeprefix(prefix)
                    if name and not name.endswith("/"):
                        found[name] = (int(entry["Size"]), str(entry["ETag"]))
    except TransferInterrupted as cause:
        raise Unavailable(f"s3://{bucket}/{prefix} cannot be listed: {cause}") from cause
    if not found:
        raise NotFound(f"s3://{bucket}/{prefix} contains no objects")
    return found


def upload(client: Any, path: Path, bucket: str, key: str, sha256: str, sent: Callable[[int], None]) -> None:
    """Upload a file as an object, in parts if it is large; readers see the old or the complete new object.

    ``sent`` is called with numbers of sent bytes, possibly from other threads. The digest is kept as metadata
    ``sha256``.

    Raises:
        NotFound: no such bucket.
        Unavailable, PermissionDenied: S3 does not answer or does not allow it.
    """
    try:
        with _errors(f"s3://{bucket}/{key}"):
            client.upload_file(
                str(path), bucket, key, ExtraArgs={"Metadata": {"sha256": sha256}}, Callback=sent,
            )  # fmt: skip
    except TransferInterrupted as cause:
        raise Unavailable(f"{path.name} cannot be written to s3://{bucket}/{key}: {cause}") from cause


@contextmanager
def _errors(uri: str) -> Iterator[None]:
    """Convert boto's errors to rdukit's."""
    exceptions, boto3 = import_module("botocore.exceptions"), import_module("boto3.exceptions")
    try:
        yield
    except exceptions.ClientError as cause:
        raise _told(uri, cause.response, cause) from cause
    except boto3.S3UploadFailedError as cause:
        inner = cause.__context__
        raise _told(uri, getattr(inner, "response", {}), cause) from cause
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as cause:
        raise PermissionDenied(f"{uri}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") from cause
    except exceptions.ParamValidationError as cause:
        raise NotFound(f"{uri} is not valid: {cause}") from cause
    except (exceptions.BotoCoreError, exceptions.HTTPClientError, OSError) as cause:
        raise TransferInterrupted(f"{type(cause).__name__}: {cause}") from cause


def _told(uri: str, response: Any, cause: Exception) -> RdukitError | TransferInterrupted:
    error = response.get("Error", {}) if isinstance(response, dict) else {}
    code = str(error.get("Code", ""))
    if code in _MISSING:
        return NotFound(f"{uri} does not exist ({code})")
    if code in _FORBIDDEN:
        return PermissionDenied(f"{uri} refuses this box ({code})")
    return TransferInterrupted(f"{code}: {error.get('Message') or cause}")
