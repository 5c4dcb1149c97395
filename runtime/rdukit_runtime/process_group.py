"""Joining the ranks of a launch: torch's default process group, over gloo.

Stock torch wheels have no MPI, so MPI launchers only start the ranks here; they meet over TCP. Where they meet comes
from ``MASTER_ADDR`` and ``MASTER_PORT``; without these, ranks of one node meet at a port that rank 0 chooses and
leaves with a secret in the home folder, in a file of the launch that only their user can read. Source: SDK reference
18 (fallback from ``mpi``); the way is ours.
"""

import atexit
import contextlib
import importlib
import ipaddress
import json
import logging
import os
import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist

from rdukit.errors import InvalidArgument, PeerLost, Unavailable
from rdukit.files.atomic import write_json_atomic
from rdukit.settings import resolve
from rdukit.telemetry.logs import begin_logs_with_rank
from rdukit_node.leases.launch import LOOPBACK, Launch, read_launch
from rdukit_runtime.collectives.gloo import close_planes
from rdukit_runtime.collectives.handshake import combine_tokens
from rdukit_runtime.collectives.meeting import RENDEZVOUS, launch_file, remove_ended_launches
from rdukit_runtime.collectives.membership import name_ranks
from rdukit_runtime.collectives.network import join_network, use_interface_of
from rdukit_runtime.collectives.ports import keep_ports
from rdukit_runtime.collectives.rank_store import RankStore, connect_rank_store, serve_rank_store
from rdukit_runtime.collectives.replacement import take_place
from rdukit_runtime.collectives.trusted import open_trusted_store
from rdukit_runtime.engine.torch_private import HashStore, PrefixStore, Store, TCPStore, limit_waits
from rdukit_runtime.settings import (
    DISTRIBUTED_REGROUP_TIMEOUT_S,
    DISTRIBUTED_TIMEOUT_S,
    DISTRIBUTED_TOKEN,
    RENDEZVOUS_TIMEOUT_S,
)
from rdukit_runtime.vendor_variables import find_notes

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.02
#: Seconds between checks whether missing ranks have ended.
_LOOK_S: Final = 0.2
#: Stores of torch's groups, which hold the C++ part of a store only.
_STORES: Final[weakref.WeakKeyDictionary[dist.ProcessGroup, Any]] = weakref.WeakKeyDictionary()


def join_process_group(timeout: timedelta | None = None) -> Launch:
    """Create torch's default process group of the ranks that were launched together; alone, a world of one.

    Does nothing if there is a group already.

    Args:
        timeout: of one collective; default: the setting ``distributed.timeout_s``.
    Raises:
        PeerLost: not all ranks came in time. Unauthenticated: the ranks have different tokens. InvalidArgument: the
        launcher's variables are wrong, or ranks are on several nodes and nothing says where they meet. Unavailable:
        this torch cannot make a process group.
    """
    launch = read_launch(os.environ)
    if not (dist.is_available() and dist.is_gloo_available()):
        raise Unavailable("this torch has no gloo, which data parallel needs; install a stock torch wheel")
    if launch.world_size > 1:
        begin_logs_with_rank(launch.rank)
    if dist.is_initialized():
        return launch
    notes = find_notes(os.environ)
    for note in notes if launch.rank == 0 else ():
        logger.warning("%s", note)
    longest = timeout or timedelta(seconds=resolve(DISTRIBUTED_TIMEOUT_S))
    _bind_defaults()
    if launch.local_rank == 0:
        remove_ended_launches()
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
                f"rank {launch.rank} of {launch.world_size} (by {launch.name}) did not meet all other ranks within "
                f"{resolve(RENDEZVOUS_TIMEOUT_S):g} s ({str(cause).splitlines()[0]}); read the other ranks' messages, "
                f"check MASTER_ADDR and MASTER_PORT if they are set, or raise ${RENDEZVOUS_TIMEOUT_S.variable}",
                rank=launch.rank,
            ) from cause
    atexit.register(leave_process_group)
    logger.info("event=joined rank=%d ranks=%d launcher=%s", launch.rank, launch.world_size, launch.name)
    return launch


def renew_process_group(
    backend: str, store: Any, members: Sequence[int], rank: int, timeout: timedelta, has_ended: Callable[[int], bool]
) -> None:
    """Recreate torch's default process group from the ranks that meet at ``store``.

    Args:
        members: the ranks. rank: this process's. has_ended: whether the process of a rank has ended.
    Raises:
        RuntimeError: torch's, or a rank has ended or did not come within ``distributed.regroup_timeout_s``.
    """
    store.set(f"rdukit/here/{rank}", "1")
    limit_s = resolve(DISTRIBUTED_REGROUP_TIMEOUT_S)
    end, look = time.monotonic() + limit_s, 0.0
    missing = list(members)
    while missing := [peer for peer in missing if not store.check([f"rdukit/here/{peer}"])]:
        now = time.monotonic()
        if now >= look:
            if ended := [peer for peer in missing if has_ended(peer)]:
                raise RuntimeError(f"{name_ranks(ended)} ended before joining the new group")
            look = time.monotonic() + _LOOK_S
        if now > end:
            raise RuntimeError(f"{name_ranks(missing)} did not join the new group within {limit_s:g} s")
        time.sleep(_POLL_S)
    dist.init_process_group(backend, store=store, rank=members.index(rank), world_size=len(members), timeout=timeout)


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
    token = resolve(DISTRIBUTED_TOKEN)
    is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun's agent serves the port
    if launch.address is not None and launch.port is not None and not (is_agents and launch.is_one_node):
        if not token and launch.rank == 0 and not _loopback_of(launch.address):
            logger.warning(
                "event=no-token: any machine that reaches the ranks' port can join them; set $%s to the same random "
                "value on all ranks", DISTRIBUTED_TOKEN.variable,
            )  # fmt: skip
        if is_agents:
            store = _store_by_agent(launch, token, launch.address, launch.port)
        else:
            store = _store(launch, token, launch.address, launch.port)
        _init(launch, store, launch.address, longest)
        return
    if not launch.is_one_node:
        raise InvalidArgument(
            f"the {launch.world_size} ranks are on several nodes; on all ranks set MASTER_ADDR to rank 0's host and "
            "MASTER_PORT to a free port there"
        )
    use_interface_of(LOOPBACK)
    path = launch_file(RENDEZVOUS)
    if launch.rank == 0:
        secret = secrets.token_hex(16)
        store = _store(launch, combine_tokens(token, secret), LOOPBACK, 0)
        write_json_atomic(path, {"port": store.port, "pid": os.getpid(), "token": secret}, 0o600)
        try:
            _init(launch, store, LOOPBACK, longest)
        finally:
            path.unlink(missing_ok=True)
    else:
        port, secret = _wait_for_port(path)
        _init(launch, _store(launch, combine_tokens(token, secret), LOOPBACK, port), LOOPBACK, longest)


def _store(launch: Launch, token: str, address: str, port: int) -> RankStore:
    """Return the store at which ranks meet; rank 0 serves it, at a port of its own choice where ``port`` is 0."""
    waiting = timedelta(seconds=resolve(RENDEZVOUS_TIMEOUT_S))
    if launch.rank == 0:
        return serve_rank_store(token, waiting, host=_loopback_of(address), port=port)
    return connect_rank_store((address, port), token, waiting, patience_s=waiting.total_seconds())


def _loopback_of(address: str) -> str:
    """Return an address that only this machine's processes reach; empty: others do, too."""
    if address == "localhost":
        return LOOPBACK
    with contextlib.suppress(ValueError):
        return address if ipaddress.ip_address(address).is_loopback else ""
    return ""


def _store_by_agent(launch: Launch, token: str, address: str, port: int) -> Store:
    """Return the store at which ranks meet, which they find by the store of torchrun's agent."""
    waiting = timedelta(seconds=resolve(RENDEZVOUS_TIMEOUT_S))
    agent = TCPStore(address, port, None, False, timeout=waiting, wait_for_workers=False)
    attempt = PrefixStore(f"rdukit/attempt{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", agent)
    return open_trusted_store(attempt, launch.rank, launch.world_size, token, address, waiting)


def _init(launch: Launch, store: Store, meeting: str, longest: timedelta) -> None:
    """Wait for all ranks, then connect them within the time that they have to start."""
    ports = join_network(store, launch.rank, launch.world_size, meeting)
    connecting = min(longest, timedelta(seconds=resolve(RENDEZVOUS_TIMEOUT_S)))
    dist.init_process_group("gloo", store=store, rank=launch.rank, world_size=launch.world_size, timeout=connecting)
    group = dist.group.WORLD
    assert group is not None, "it has been made"
    limit_waits(group, longest)
    keep_ports(group, ports)
    _STORES[group] = store


def _wait_for_port(path: Path) -> tuple[int, str]:
    """Return the port and the secret that rank 0 of this launch left at ``path``; those of a dead process are ignored.

    Raises:
        InvalidArgument: another user wrote the file.
    """
    waiting = resolve(RENDEZVOUS_TIMEOUT_S)
    end = time.monotonic() + waiting
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with path.open() as file:
                if os.fstat(file.fileno()).st_uid not in {os.geteuid(), 0}:
                    raise InvalidArgument(
                        f"{path} belongs to another user; expected the file of rank 0: set $RDUKIT_HOME to a folder "
                        "that other users cannot write"
                    )
                found = json.load(file)
            os.kill(int(found["pid"]), 0)
            return int(found["port"]), str(found["token"])
        time.sleep(_POLL_S)
    raise RuntimeError(f"rank 0 has not started: {path} does not exist")
