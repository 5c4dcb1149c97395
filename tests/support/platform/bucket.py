"""A real S3 server, moto's, with a bucket; it can be away for a while, and has everything when it is back."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import boto3  # type: ignore[import-untyped]
import pytest
from moto.server import ThreadedMotoServer

NAME = "platform"
#: Secret of the credentials, which nothing may tell.
SECRET = "s3cretkey+of/the-bucket"


class BucketServer:
    """The server; ``client`` is boto3's, ``environment`` what rdukit's processes need."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._server.start()
        self.host, self.port = self._server.get_host_and_port()
        self.environment: Mapping[str, str] = {
            "AWS_ENDPOINT_URL_S3": f"http://{self.host}:{self.port}", "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip
        self.client: Any = boto3.client(
            "s3", endpoint_url=self.environment["AWS_ENDPOINT_URL_S3"], region_name="us-east-1",
            aws_access_key_id="AKIDEXAMPLE", aws_secret_access_key=SECRET,
        )  # fmt: skip
        self.client.create_bucket(Bucket=NAME)

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys of all objects below a prefix."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=NAME, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def go(self) -> None:
        """Take the server away; nobody listens at its port."""
        self._server.stop()

    def come_back(self) -> None:
        """Bring the server back with all it had."""
        self._server = ThreadedMotoServer(self.host, self.port, verbose=False)
        self._server.start()

    def close(self) -> None:
        """End it."""
        self.client.close()
        self._server.stop()


@contextmanager
def bucket_server() -> Iterator[BucketServer]:
    """Yield a server, and let this process and its children know it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = BucketServer()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
            patch.delenv(name, raising=False)
        for name, value in server.environment.items():
            patch.setenv(name, value)
        try:
            yield server
        finally:
            server.close()
