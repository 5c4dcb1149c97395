"""A real OpenID Connect issuer (oidc-provider-mock, on Authlib's server) as a process, and a browser that logs in."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx

from support import wait_until

CLIENT_ID = "rdukit"


def free_port() -> int:
    """Return a loopback port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@dataclass
class LocalIssuer:
    """An issuer at a loopback port, which anybody may log in to as anybody."""

    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, with a new key and no users."""
        command = [sys.executable, "-m", "oidc_provider_mock", "--port", str(self.port), "--require-nonce", "true"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers, timeout_s=60)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)
            self.process = None

    def set_user(self, subject: str, **claims: object) -> None:
        """Say what the issuer knows of a user."""
        answer = httpx.put(f"{self.url}/users/{subject}", json=claims, timeout=30)
        assert answer.status_code == 204, answer.text

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/jwks", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False


@contextmanager
def local_issuer() -> Iterator[LocalIssuer]:
    """Yield an issuer that runs."""
    issuer = LocalIssuer()
    issuer.start()
    try:
        yield issuer
    finally:
        issuer.stop()


class Browser:
    """A browser with its cookies, at a gateway; it follows no redirect by itself."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=60)

    def begin(self, following: str = "/console/") -> httpx.Response:
        """Press the button of the login page."""
        return self.http.get("/console/oidc/login", params={"next": following})

    def consent(self, sent: httpx.Response, subject: str) -> str:
        """Log in at the issuer. Returns the address that it sends the browser back to."""
        assert sent.status_code == 303, sent.text
        answer = httpx.post(sent.headers["location"], data={"sub": subject}, timeout=60)
        assert answer.status_code == 302, answer.text
        return answer.headers["location"]

    def come_back(self, location: str) -> httpx.Response:
        """Open the address that the issuer sent the browser to."""
        parts = urlsplit(location)
        return self.http.get(f"{parts.path}?{parts.query}")

    def log_in(self, subject: str, following: str = "/console/") -> httpx.Response:
        """Log in from the button to the last answer."""
        return self.come_back(self.consent(self.begin(following), subject))

    def is_in(self) -> bool:
        """Return whether the console shows its pages."""
        return self.http.get("/console/members").status_code == 200
