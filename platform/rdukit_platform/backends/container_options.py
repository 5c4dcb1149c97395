"""Options of a box's container for an engine (pure except for this process's user id)."""

import os
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rdukit.box.image import BOX_FOLDER, BOX_LABEL, GRPC_PORT, REST_PORT, USER_ID
from rdukit.fence.spec import FenceLimits
from rdukit.settings import HOME
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.fenced import log_place

OWNER_LABEL: Final = "dev.rdukit.owner"
EPOCH_LABEL: Final = "dev.rdukit.epoch"
PORTS: Final[Mapping[str, object]] = {
    "ports": {f"{REST_PORT}/tcp": ("127.0.0.1", None), f"{GRPC_PORT}/tcp": ("127.0.0.1", None)}
}
#: Only loopback is reachable. APIs are UNIX sockets in the box's folder.
NO_NETWORK: Final[Mapping[str, object]] = {"network_mode": "none"}
#: Default limits of a container, equal to those of a fence.
LIMITS: Final = FenceLimits()
ULIMITS: Final[Mapping[str, int | None]] = {"nofile": LIMITS.open_files, "fsize": LIMITS.file_bytes, "core": 0}
#: Bytes of the log that the engine keeps, from its end: a box may write without end.
LOG_BYTES: Final = 16 << 20
#: OOM score from -1000 (never) to 1000 (always): the OOM killer picks boxes before the worker.
OUT_OF_MEMORY_FIRST: Final = 500
#: Folders that podman would mount as memory without a limit.
_TEMPORARY: Final = ("/tmp", "/var/tmp")


def container_options(
    spec: BoxSpec,
    image: str,
    security: Iterable[str] = (),
    volumes: Iterable[str] = (),
    ulimits: Mapping[str, int | None] = ULIMITS,
    given: str = "",
) -> dict[str, Any]:
    """Make the options that docker-py's ``create`` takes.

    Args:
        security: security options in addition to those of every box.
        volumes: volumes that the image declares; on the engine's disk they would have no limit.
        given: the engine's mount option that makes the box's user own memory; empty: ``uid=…``.
    """
    given = given or f"uid={uid_of_box()}"
    labels = {BOX_LABEL: spec.box}
    if spec.owner is not None:
        labels |= {OWNER_LABEL: spec.owner.id, EPOCH_LABEL: str(spec.owner.epoch)}
    sockets = [path.parent for path in spec.sockets]  # connecting writes nothing there
    read = {str(path): {"bind": str(path), "mode": "ro"} for path in (*spec.mounts, *sockets)}
    written = {str(path): {"bind": str(path), "mode": "rw"} for path in (spec.state, *spec.outputs)}
    options: dict[str, Any] = {
        "image": spec.image or image,
        "command": box_command(spec),
        "name": f"rdukit-{secrets.token_hex(6)}",
        "labels": labels,
        "environment": {
            HOME.variable: str(spec.state),
            "HOME": str(spec.state),
            **log_place(spec, spec.state),
            **spec.environment,
        },
        "volumes": {**read, **written},
        **(NO_NETWORK if spec.has_sockets else PORTS),
        "user": user_of_box(),
        "read_only": True,
        "tmpfs": dict.fromkeys(
            [path for path in (*_TEMPORARY, *volumes) if path not in read and path not in written],
            # Engines copy the mode of the image's folder, which others may not be able to enter.
            f"rw,nosuid,nodev,mode=1777,{given},size={LIMITS.temporary_bytes}",
        ),
        "shm_size": LIMITS.temporary_bytes,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges", *security],
        "pids_limit": LIMITS.processes,
        "ulimits": [{"name": name, "soft": value, "hard": value} for name, value in ulimits.items()],
        "oom_score_adj": OUT_OF_MEMORY_FIRST,
        "log_config": {"type": "json-file", "config": {"max-size": str(LOG_BYTES)}},
    }
    limits = spec.limits
    if limits.cores is not None:
        options["cpuset_cpus"] = ",".join(map(str, limits.cores))
        # torch chooses its number of threads by the machine, not by the container.
        options["environment"].setdefault("OMP_NUM_THREADS", str(max(len(limits.cores), 1)))
    if limits.memory_bytes is not None:
        options["mem_limit"] = limits.memory_bytes
    if limits.pids is not None:
        options["pids_limit"] = limits.pids
    return options


def box_command(spec: BoxSpec) -> list[str]:
    """Return the command of the container; the image's tini stays its first process."""
    box = f"{BOX_FOLDER}/modelbox.yaml" if spec.image is not None else str(spec.folder or spec.box)
    ports = ["--host", "0.0.0.0", "--rest-port", str(REST_PORT), "--grpc-port", str(GRPC_PORT)]
    wires = ["--socket-folder", str(spec.state)] if spec.has_sockets else ports
    command = ["rdukit", "box", "run", box, *wires, "--parent", "0", "--state", str(spec.state)]
    for mount in (*spec.mounts, *spec.outputs):
        command += ["--mount", str(mount)]
    return command


def asked_limits(spec: BoxSpec) -> list[str]:
    """Return the names of the limits that ``spec`` sets."""
    limits = {"cores": spec.limits.cores, "memory": spec.limits.memory_bytes, "pids": spec.limits.pids}
    limits["disk"] = spec.limits.disk_bytes
    return [name for name, value in limits.items() if value is not None]


def user_of_box() -> str:
    """Return the user of a container: this process's, whose files it works on; for root the image's."""
    return f"{os.getuid()}:{os.getgid()}" if os.getuid() != 0 else f"{USER_ID}:{USER_ID}"


def uid_of_box() -> int:
    """Return the number of that user."""
    return os.getuid() or USER_ID
