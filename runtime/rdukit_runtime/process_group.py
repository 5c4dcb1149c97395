"""Joining the ranks of a launch: torch's default process group, over gloo.

Stock torch wheels have no MPI, so MPI launchers only start the ranks here; they meet over TCP. ``MASTER_ADDR`` and
``MASTER_PORT`` name the meeting place. Without them, ranks of one node meet at a port that rank 0 chooses and records
in the home folder under the launch's name. Source: SDK reference 18 (fallback from ``mpi``); the way is ours.
"""

import atexit
import contextlib
import importlib
import json
import logging
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist

from rdukit.errors import InvalidArgument, PeerLost, Unavailable
from rdukit.files.atomic import sha256_of, write_json_atomic
from rdukit.settings import home_folder, resolve
from rdukit_node.leases.launch import LOOPBACK, Launch, launch_name, read_launch
from rdukit_runtime.collectives.gloo import close_planes
from rdukit_runtime.collectives.replacement import take_place
from rdukit_runtime.engine.torch_private import HashStore, TCPStore
from rdukit_runtime.settings import DISTRIBUTED_REGROUP_TIMEOUT_S, DISTRIBUTED_TIMEOUT_S, RENDEZVOUS_TIMEOUT_S
from rdukit_runtime.vendor_variables import find_notes

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.02
#: Seconds between checks whether missing ranks have ended.
_LOOK_S: Final = 0.2


def join_process_group(timeout: timedelta | None = None) -> Launch:
    """Create torch's default process group of the ranks that were launched together; alone, a world of one.

    Does nothing if there is a group already.

    Args:
        timeout: of one collective; default: the setting ``distributed.timeout_s``.
    Raises:
        PeerLost: not all ranks came in time. InvalidArgument: the launcher's variables are wrong, or ranks on several
        nodes have no meeting place. Unavailable: this torch cannot make a process group.
    """
    launch = read_launch(os.environ)
    if not (dist.is_available() and dist.is_gloo_available()):
        raise Unavailable("this torch has no gloo, which data parallel needs; install a stock torch wheel")
    if dist.is_initialized():
        return launch
    notes = find_notes(os.environ)
    for note in notes if launch.rank == 0 else ():
        logger.warning("%s", note)
    longest = timeout or timedelta(seconds=resolve(DISTRIBUTED_TIMEOUT_S))
    _bind_defaults()
    if launch.launcher is not None and take_place(launch.rank):
        atexit.register(leave_process_group)
        return launch
    if launch.world_size == 1:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1, timeout=longest)
    else:
        try:
            _meet(launch, longest)
        except RuntimeError as cause:
            raise PeerLost(
                f"rank {launch.rank} of {launch.world_size} (by {launch.name}) did not meet all others within "
                f"{resolve(RENDEZVOUS_TIMEOUT_S):g} s ({str(cause).splitlines()[0]}); look at what the other ranks "
                f"say, check MASTER_ADDR and MASTER_PORT if they are set, or raise ${RENDEZVOUS_TIMEOUT_S.variable}",
                rank=launch.rank,
            ) from cause
    atexit.register(leave_process_group)
    logger.info("event=joined rank=%d ranks=%d launcher=%s", launch.rank, launch.world_size, launch.name)
    return launch


def renew_process_group(
    backend: str, store: Any, rank: int, size: int, timeout: timedelta, has_ended: Callable[[int], bool]
) -> None:
    """Make torch's default process group anew, of the ranks that meet at ``store``.

    Args:
        has_ended: whether the process of a rank has ended.
    Raises:
        RuntimeError: torch's, or a rank has ended or did not come within ``distributed.regroup_timeout_s``.
    """
    store.set(f"rdukit/here/{rank}", "1")
    limit_s = resolve(DISTRIBUTED_REGROUP_TIMEOUT_S)
    end, look = time.monotonic() + limit_s, 0.0
    missing = list(range(size))
    while missing := [peer for peer in missing if not store.check([f"rdukit/here/{peer}"])]:
        now = time.monotonic()
        if now >= look:
            if any(map(has_ended, missing)):
                raise RuntimeError("a rank ended before it came to the new group")
            look = time.monotonic() + _LOOK_S
        if now > end:
            raise RuntimeError(f"a rank did not come to the new group within {limit_s:g} s")
        time.sleep(_POLL_S)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


def _bind_defaults() -> None:
    """Keep torch from holding the group for ever.

    Functions of this module have the default group of the moment of its import among their default arguments, and
    tracing imports it. Modules imported while the group is up keep it, so its threads outlive ``leave_process_group``;
    they can then meet the C++ library's clean-up, which ends the process with SIGABRT. For modules imported before, the
    default is None.
    """
    importlib.import_module("torch.distributed.nn.functional")


def leave_process_group() -> None:
    """Close the data planes, and destroy torch's default process group, if there is one."""
    close_planes()
    if dist.is_initialized():
        dist.destroy_process_group()


def _meet(launch: Launch, longest: timedelta) -> None:
    if launch.address is not None and launch.port is not None:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun's agent keeps the store
            dist.init_process_group("gloo", init_method="env://", timeout=longest)
            return
        _init(launch, _store(launch, launch.address, launch.port), longest)
        return
    if not launch.is_one_node:
        raise InvalidArgument(
            f"the {launch.world_size} ranks are on several nodes; set MASTER_ADDR to rank 0's host and MASTER_PORT to "
            "a free port there, equal for all ranks"
        )
    _use_loopback()
    path = home_folder() / "run" / f"rendezvous-{sha256_of((launch_name() or '').encode())[:16]}.json"
    if launch.rank == 0:
        store = _store(launch, LOOPBACK, 0)
        write_json_atomic(path, {"port": store.port, "pid": os.getpid()})
        try:
            _init(launch, store, longest)
        finally:
            path.unlink(missing_ok=True)
    else:
        _init(launch, _store(launch, LOOPBACK, _wait_for_port(path)), longest)


def _store(launch: Launch, address: str, port: int) -> TCPStore:
    """Return the store at which ranks meet; rank 0 serves it, at a port of its own choice where ``port`` is 0."""
    waiting = timedelta(seconds=resolve(RENDEZVOUS_TIMEOUT_S))
    is_master = launch.rank == 0
    return TCPStore(address, port, launch.world_size, is_master, timeout=waiting, wait_for_workers=False)


def _init(launch: Launch, store: TCPStore, longest: timedelta) -> None:
    """Wait for all ranks, then connect them: connecting itself knows only the collectives' long timeout."""
    store.set(f"rdukit/here/{launch.rank}", "1")
    store.wait([f"rdukit/here/{rank}" for rank in range(launch.world_size)])
    dist.init_process_group("gloo", store=store, rank=launch.rank, world_size=launch.world_size, timeout=longest)


def _wait_for_port(path: Path) -> int:
    """Return the port that rank 0 of this launch left at ``path``; a port of a dead process is ignored."""
    waiting = resolve(RENDEZVOUS_TIMEOUT_S)
    end = time.monotonic() + waiting
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found = json.loads(path.read_text())
            os.kill(int(found["pid"]), 0)
            return int(found["port"])
        time.sleep(_POLL_S)
    raise RuntimeError(f"rank 0 has not come: there is no {path}")


def _use_loopback() -> None:
    """Use the loopback device: ranks of one node need no other network. A program's own choice stays."""
    if "GLOO_SOCKET_IFNAME" not in os.environ and Path("/sys/class/net/lo").exists():
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
