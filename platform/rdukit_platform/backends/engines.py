"""Run boxes as containers of Docker, or of podman through ``podman system service``."""

import json
import os
from collections.abc import Mapping
from typing import Final

from rdukit.box.image import DEFAULT_BASE
from rdukit.fence.seccomp import engine_profile
from rdukit.files.atomic import write_json_atomic
from rdukit.interfaces import Clock
from rdukit_platform.backends.container_options import ULIMITS
from rdukit_platform.backends.containers import EngineBackend
from rdukit_platform.backends.contract import BoxSpec

DEFAULT_SOCKET: Final = "unix:///var/run/docker.sock"


class DockerBackend(EngineBackend):
    """Starts boxes by the Docker daemon at ``url`` (``DOCKER_HOST``, or its usual socket)."""

    name = "docker"

    def __init__(self, image: str = DEFAULT_BASE, url: str | None = None, clock: Clock | None = None) -> None:
        super().__init__(url or os.environ.get("DOCKER_HOST") or DEFAULT_SOCKET, image, clock)

    def _security(self, spec: BoxSpec) -> list[str]:
        """Return the filter of system calls, in the option itself."""
        return [f"seccomp={json.dumps(engine_profile())}"]


ROOT_SOCKET: Final = "unix:///run/podman/podman.sock"
#: Name of the file in a box's folder.
PROFILE: Final = "system-calls.json"


class PodmanBackend(EngineBackend):
    """Starts boxes by the podman service at ``url`` (``CONTAINER_HOST``, or the socket of this user's service)."""

    name = "podman"
    # Podman sets this limit itself, and requests too much if it lacks rights.
    ulimits: Mapping[str, int | None] = {**ULIMITS, "nproc": 16384}
    given = "U"

    def __init__(self, image: str = DEFAULT_BASE, url: str | None = None, clock: Clock | None = None) -> None:
        where = url or os.environ.get("CONTAINER_HOST") or default_socket()
        self._is_here = where.startswith("unix://")
        super().__init__(where, image, clock)

    def _security(self, spec: BoxSpec) -> list[str]:
        """Return the filter of system calls, in a file that podman reads before the box can write there."""
        if not self._is_here:
            return []
        write_json_atomic(spec.state / PROFILE, engine_profile())
        return [f"seccomp={spec.state / PROFILE}"]


def default_socket() -> str:
    """Return the socket of ``podman system service``: root's, or this user's."""
    user = os.getuid()
    return ROOT_SOCKET if user == 0 else f"unix:///run/user/{user}/podman/podman.sock"
