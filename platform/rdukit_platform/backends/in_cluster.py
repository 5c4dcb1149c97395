"""Identity of this process in its cluster: account, namespace, and address of the API."""

import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx

from rdukit.errors import Unavailable
from rdukit.fence.in_pod import API_HOST, API_PORT

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class AccountToken(httpx.Auth):
    """The token of a service account, read for each request, because the kubelet replaces it before it expires."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def auth_flow(self, request: httpx.Request) -> Iterator[httpx.Request]:  # type: ignore[override]
        """Add the token to the request.

        Raises:
            Unavailable: the file is missing.
        """
        try:
            request.headers["Authorization"] = f"Bearer {self._file.read_text().strip()}"
        except OSError as cause:
            raise Unavailable(f"the token of the service account has gone: {cause}") from cause
        yield request


def in_cluster_client(account: Path = ACCOUNT) -> httpx.Client:
    """Return a client with the service account of the Pod that this process runs in.

    The API is called at the address that every Pod of the cluster has for it, not by name.

    Raises:
        Unavailable: this process runs in no Pod, or has no token.
    Source: Kubernetes documentation, "Accessing the Kubernetes API from a Pod".
    """
    host, port = os.environ.get(API_HOST, ""), os.environ.get(API_PORT, "443")
    if not host:
        raise Unavailable(f"not in a Kubernetes cluster: {API_HOST} is not set")
    try:
        (account / "token").read_bytes()
        trusted = ssl.create_default_context(cafile=str(account / "ca.crt"))
    except OSError as cause:
        raise Unavailable(
            f"this pod has no token of the cluster: {cause}; the chart mounts one where jobs.boxes is pods"
        ) from cause
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return httpx.Client(base_url=url, verify=trusted, auth=AccountToken(account / "token"), timeout=30.0)


def own_namespace(account: Path = ACCOUNT) -> str:
    """Return the namespace of the Pod that this process runs in.

    Raises:
        Unavailable: this process runs in no Pod.
    """
    try:
        return (account / "namespace").read_text().strip()
    except OSError as cause:
        raise Unavailable(f"not in a Kubernetes cluster: {cause}") from cause
