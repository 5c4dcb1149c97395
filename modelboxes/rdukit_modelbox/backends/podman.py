"""Run boxes as podman containers, through ``podman system service``."""

import os
from typing import Final

from rdukit.clock import Clock
from rdukit_modelbox.backends.engine import EngineBackend
from rdukit_modelbox.image.engines import DEFAULT_BASE

ROOT_SOCKET: Final = "unix:///run/podman/podman.sock"


class PodmanBackend(EngineBackend):
    """Starts boxes by the podman service at ``url`` (``CONTAINER_HOST``, or the socket of this user's service)."""

    name = "podman"

    def __init__(self, image: str = DEFAULT_BASE, url: str | None = None, clock: Clock | None = None) -> None:
        super().__init__(url or os.environ.get("CONTAINER_HOST") or default_socket(), image, clock)


def default_socket() -> str:
    """Where ``podman system service`` listens: root's, or this user's."""
    user = os.getuid()
    return ROOT_SOCKET if user == 0 else f"unix:///run/user/{user}/podman/podman.sock"
