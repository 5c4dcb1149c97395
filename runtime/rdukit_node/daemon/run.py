"""A node daemon from start to end: database, log, socket, SNML, the loop, and messages to a service manager.

Source: ours; the messages follow sd_notify(3): one datagram of ``NAME=value`` lines to the socket in
``$NOTIFY_SOCKET``.
"""

import contextlib
import json
import logging
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rdukit import __version__
from rdukit.errors import InvalidArgument, RdukitError
from rdukit.files.atomic import sha256_of, write_json_atomic
from rdukit.hardware import NodeSpec
from rdukit.interfaces import Clock, SystemClock
from rdukit.settings import SND_REATTACH_S, resolve
from rdukit.snd import SndClient
from rdukit_node.daemon.daemon import NodeDaemon
from rdukit_node.daemon.database_writer import DatabaseWriter
from rdukit_node.daemon.lease_keeper import LeaseKeeper
from rdukit_node.daemon.listener import listening
from rdukit_node.daemon.server import SndServer, new_identity, new_uuid
from rdukit_node.faults.machine import FaultMachine
from rdukit_node.faults.model import FaultSnapshot, Injection
from rdukit_node.faults.salvage import Salvage, put_back, set_aside
from rdukit_node.faults.store import FaultStore
from rdukit_node.inventory import find_component, serial_number
from rdukit_node.isolation.cgroup import CgroupGuard
from rdukit_node.leases.allocator import Allocator
from rdukit_node.leases.files import KeptLease, LeaseFile, LeaseSockets
from rdukit_node.leases.user_limits import UserLimits
from rdukit_node.logs.files import configure_daemon_log
from rdukit_node.logs.queued import queued_logging
from rdukit_node.settings import SND_RDU_RESET_S, SND_USER_APPLICATIONS, SND_USER_TILES, NodePaths, node_paths
from rdukit_node.snml.token import load_or_create_token

logger = logging.getLogger(__name__)

NO_SNML: Final = -1


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Options of a node's start."""

    platform: NodeSpec
    name: str
    max_applications: int | None = None
    socket: Path | None = None
    state: Path | None = None
    #: Loopback port of SNML; 0: any free one; -1: its UNIX socket only.
    snml_port: int = NO_SNML
    #: Mode of the socket's file; 0o600: this user only.
    socket_mode: int = 0o600
    announce: Path | None = None
    with_parent: bool = False
    #: Whether SNML is served; otherwise only the socket.
    with_snml: bool = True


def run_node(options: NodeOptions, say: Callable[[str], None]) -> str:
    """Serve until a signal. Returns why it stopped.

    Args:
        say: called with the line that reports readiness.
    Raises:
        Conflict: a daemon serves this socket or this database already. InvalidArgument: a path is not usable, or the
            database is not ours.
    """
    _raise_descriptor_limit()
    clock = SystemClock()
    paths = node_paths(options.socket, options.state)
    with listening(paths.socket, options.socket_mode) as listener, contextlib.ExitStack() as stack:
        configure_daemon_log(paths.snd_log)
        stack.enter_context(queued_logging())
        guard = cgroup_guard(options, paths)
        daemon, store = _open_daemon(options, paths, clock, guard)
        journal = DatabaseWriter(daemon, store)
        lease_file = LeaseFile(paths.leases)
        server = SndServer(daemon, listener, clock, journal, LeaseKeeper(lease_file, LeaseSockets(paths.lease_sockets)))
        server.stop_on_signals()
        if options.with_parent:
            server.stop_with_parent()
        with _snml(options, paths) as port:
            ready = {
                "socket": str(paths.socket), "platform": options.platform.platform, "pid": os.getpid(),
                "database": str(paths.database), "snml_socket": str(paths.snml_socket), "snml_port": port,
            }  # fmt: skip
            if options.announce is not None:
                write_json_atomic(options.announce, ready)
            spec = options.platform
            say(f"snd ready: platform={spec.platform} tiles={spec.tiles} socket={paths.socket} pid={os.getpid()}")
            logger.info("event=ready %s", json.dumps(ready, sort_keys=True))
            notify_ready(f"{spec.platform}, {spec.tiles} tiles")
            try:
                # Last, because the programs' time to attach begins when the daemon answers.
                restore_leases(daemon, lease_file.read(), clock.now())
                if lease_file.damage:
                    damage = Injection("database-damaged", "/NODE", data=lease_file.damage)
                    daemon.administration.tell(damage, clock.now())
                with watchdog(paths.socket):
                    reason = server.serve()
            finally:
                notify_stopping()
                guard.close()
        logger.info("event=stopped reason=%s", reason)
    return reason


def cgroup_guard(options: NodeOptions, paths: NodePaths) -> CgroupGuard:
    """Control groups for the leases of the node with this socket; remains of a killed daemon are removed."""
    owner = sha256_of(str(paths.socket).encode())[:12]
    guard = CgroupGuard.by_settings(owner, options.platform.chip.tiles)
    guard.reap(())
    return guard


def _raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors, and so of connections, to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _open_daemon(
    options: NodeOptions, paths: NodePaths, clock: Clock, guard: CgroupGuard
) -> tuple[NodeDaemon, FaultStore]:
    now_ns = int(clock.now() * 1e9)
    snapshots: list[FaultSnapshot] = []  # the last one is in force

    def machine_of(snapshot: FaultSnapshot) -> FaultMachine:
        machine = FaultMachine(
            options.platform,
            new_uuid,
            now_ns=now_ns,
            rdu_reset_ns=int(resolve(SND_RDU_RESET_S) * 1e9),
            serial_of=lambda path, replaced: serial_number(
                options.name, find_component(options.platform, path), replaced
            ),
        )
        machine.restore(snapshot, now_ns)
        snapshots.append(snapshot)
        return machine

    store, faults, salvage = _open_store(paths.database, machine_of, clock.now())
    try:
        daemon = NodeDaemon(
            Allocator(options.platform, options.max_applications),
            name=options.name,
            version=__version__,
            started_at=clock.now(),
            new_identity=new_identity,
            faults=faults,
            admin_token=load_or_create_token(paths.admin_token),
            pid=os.getpid(),
            groups=guard,
            user_limits=user_limits(),
        )
        daemon.maintenance.restore(snapshots[-1].cordons, snapshots[-1].windows, clock.now())
        for row in store.applications():
            daemon.administration.remember_application(row)
        if not store.was_closed_in_order:
            daemon.administration.tell(Injection("daemon-restart", "/NODE"), clock.now())
        if salvage is not None:
            daemon.administration.tell(Injection("database-damaged", "/NODE", data=salvage.as_data()), clock.now())
    except BaseException:
        store.close()
        raise
    return daemon, store


def user_limits() -> UserLimits:
    """Return the settings' limits for users."""
    return UserLimits(resolve(SND_USER_TILES), resolve(SND_USER_APPLICATIONS))


def restore_leases(daemon: NodeDaemon, leases: Sequence[KeptLease], now: float) -> None:
    """Restore the leases of the previous daemon; those whose programs are gone end at once."""
    patience = resolve(SND_REATTACH_S)
    for kept in leases:
        is_gone = bool(kept.pids) and not any(Path(f"/proc/{pid}").exists() for pid in kept.pids)
        try:
            daemon.restore_lease(kept, now if is_gone else now + patience, now)
        except InvalidArgument as error:
            logger.warning("event=lease-not-restored reason=%s", error.message)
    daemon.tick(now)


def _open_store(
    path: Path, machine_of: Callable[[FaultSnapshot], FaultMachine], now: float
) -> tuple[FaultStore, FaultMachine, Salvage | None]:
    """Return the database and a machine with its rows. A damaged database is renamed; a new one gets readable rows."""
    try:
        store = FaultStore.open(path)
        try:
            store.applications()  # damaged rows are noticed here, too
            return store, machine_of(store.load()), None
        except BaseException:
            store.close()
            raise
    except InvalidArgument as error:
        if not error.detail.get("is_damaged"):
            raise
        reason = str(error.detail["reason"])
    salvage = set_aside(path, reason, now)
    try:
        machine = machine_of(salvage.snapshot)
    except (RdukitError, ValueError, KeyError, IndexError):  # readable rows that contradict each other
        salvage = replace(salvage, snapshot=FaultSnapshot())
        machine = machine_of(salvage.snapshot)
    store = FaultStore.open(path)
    put_back(salvage, store, int(now * 1e9))
    return store, machine, salvage


@contextlib.contextmanager
def _snml(options: NodeOptions, paths: NodePaths) -> Iterator[int | None]:
    """Serve SNML next to the daemon's loop, and yield its TCP port; a node without it still runs."""
    if not options.with_snml:
        yield None
        return
    from rdukit_node.snml.server import start_snml  # gRPC: a third of the start-up time

    try:
        server = start_snml(paths, None if options.snml_port == NO_SNML else options.snml_port)
    except RdukitError as error:
        logger.error("event=no-snml reason=%s", error.message)
        yield None
        return
    for notice in server.notices:
        logger.warning("event=snml-notice text=%s", notice)
    try:
        yield server.port
    finally:
        server.stop()


def node_name(given: str) -> str:
    """Return the node's name: the given one, or the host's."""
    return given or socket.gethostname()


READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
WATCHDOG: Final = "WATCHDOG=1"
_SOCKET: Final = "NOTIFY_SOCKET"


def notify(*lines: str, environ: Mapping[str, str] | None = None) -> bool:
    """Send ``lines`` such as ``READY``. Returns whether it was sent; never raises, never blocks."""
    address = (os.environ if environ is None else environ).get(_SOCKET, "")
    if not address.startswith(("/", "@")):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.connect("\0" + address[1:] if address.startswith("@") else address)
            sender.send("\n".join(lines).encode())
    except (OSError, ValueError) as error:
        logger.warning("event=notify-failed socket=%s error=%s", address, error)
        return False
    return True


def notify_ready(status: str) -> bool:
    """Report that the daemon answers from now on. ``status``: the text of ``systemctl status``."""
    return notify(READY, f"MAINPID={os.getpid()}", f"STATUS={' '.join(status.split())}")


def notify_stopping() -> bool:
    """Report that the daemon is about to end, on purpose."""
    return notify(STOPPING)


@contextlib.contextmanager
def watchdog(daemon: Path, environ: Mapping[str, str] | None = None) -> Iterator[None]:
    """Send the manager keepalives within the block, at its interval, while the daemon answers.

    A thread probes the daemon's own socket: if the loop hangs, the keepalives stop and the manager restarts the daemon.
    """
    interval_s = watchdog_interval_s(environ)
    if interval_s is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(daemon, interval_s, ended, environ), name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(interval_s)


def _watch(daemon: Path, interval_s: float, ended: threading.Event, environ: Mapping[str, str] | None) -> None:
    while not ended.is_set():
        try:
            with SndClient(daemon, interval_s) as client:
                client.call("hello")
            notify(WATCHDOG, environ=environ)
        except RdukitError as error:
            logger.warning("event=watchdog-unanswered error=%s", error.message)
        ended.wait(interval_s / 2)


def watchdog_interval_s(environ: Mapping[str, str] | None = None) -> float | None:
    """Return the seconds between ``WATCHDOG`` messages, half of the manager's timeout; ``None``: it does not watch this
    process.
    """
    found = os.environ if environ is None else environ
    with contextlib.suppress(ValueError):
        limit_us = int(found.get("WATCHDOG_USEC", "0"))
        watched = int(found.get("WATCHDOG_PID", "0")) or os.getpid()
        if limit_us > 0 and watched == os.getpid() and found.get(_SOCKET):
            return limit_us / 2e6
    return None
