"""Run boxes as Docker containers."""

import json
import os
from typing import Final

from rdukit.box_backends import BoxSpec
from rdukit.fence.seccomp import engine_profile
from rdukit.interfaces import Clock
from rdukit_modelbox.backends.engine import EngineBackend
from rdukit_modelbox.image.engines import DEFAULT_BASE

DEFAULT_SOCKET: Final = "unix:///var/run/docker.sock"


class DockerBackend(EngineBackend):
    """Starts boxes by the Docker daemon at ``url`` (``DOCKER_HOST``, or its usual socket)."""

    name = "docker"

    def __init__(self, image: str = DEFAULT_BASE, url: str | None = None, clock: Clock | None = None) -> None:
        super().__init__(url or os.environ.get("DOCKER_HOST") or DEFAULT_SOCKET, image, clock)

    def _security(self, spec: BoxSpec) -> list[str]:
        """The filter of system calls, in the option itself."""
        return [f"seccomp={json.dumps(engine_profile())}"]
