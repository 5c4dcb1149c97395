"""Replica from its claim to its end: tiles, PEF, checkpoint, box, ready, watch, drain.

A replica is one box. When the box ends, so does the replica, and the scheduler starts another. The node's lease is on a
connection of the worker, so the tiles are freed as soon as the worker or the replica ends.
"""

import logging
import os
import stat
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from rdukit.box.settings import BUNDLE, CHECKPOINT, PEF
from rdukit.errors import (
    BackendUnavailable,
    Cancelled,
    ContentDamaged,
    InvalidArgument,
    LeaseLost,
    NoResources,
    NotFenced,
    NotFound,
    PermissionDenied,
    RdukitError,
    Unavailable,
)
from rdukit.files.atomic import remove_tree
from rdukit.files.home import make_folder
from rdukit.http.unix_sockets import parse_rest_address, rest_address
from rdukit.settings import LEASE, SND_SOCKET, resolve
from rdukit_platform.backends.contract import BoxOwner, RunningBox
from rdukit_platform.backends.job_boxes import BoxPlace, OwnBox, spec_of
from rdukit_platform.catalog.model import Selector
from rdukit_platform.db.models import ArtifactRow
from rdukit_platform.endpoints import replicas
from rdukit_platform.endpoints.bundles import bring_bundle, parts_of
from rdukit_platform.endpoints.replicas import ClaimedReplica
from rdukit_platform.endpoints.states import ReplicaReason
from rdukit_platform.settings import ENDPOINT_DRAIN_S
from rdukit_platform.tenants.service import count_tenants
from rdukit_platform.worker.context import WorkerContext, bring_own_box
from rdukit_platform.worker.tiles import TileRequest, is_withdrawn, leased_tiles
from rdukit_platform.worker.walls import check_walls

logger = logging.getLogger(__name__)

#: A replica has one box only, so its epoch is always 1.
EPOCH: Final = 1
#: Seconds in the node's queue for tiles, after which the need for them is checked again.
TILES_S: Final = 2.0
WATCH_S: Final = 0.2
#: Seconds between probes of the box, and number of successive failures after which it counts as dead.
PROBE_S: Final = 5.0
PROBES: Final = 3
#: Seconds after which every gateway has noticed that a replica drains.
SETTLE_S: Final = 2.0
STOP_S: Final = 8.0
TAIL_LINES: Final = 5
MAX_MESSAGE: Final = 1000
#: Status of a replica with tiles that does not answer yet; nothing is compiled at that stage.
LOADING: Final = "its box is starting and loading its model"


class _Ended(Exception):
    """Raised to end a replica, with its reason."""

    def __init__(self, reason: ReplicaReason, message: str | None = None) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


class ReplicaRun:
    """A replica that this worker has."""

    def __init__(self, context: WorkerContext, claimed: ClaimedReplica) -> None:
        self._context, self._claimed = context, claimed
        self._fencing, self._revision = claimed.fencing, claimed.revision
        self._folder = context.home.work / claimed.fencing.replica_id
        #: Set when the replica must end at once: the worker stops, or the replica was ended elsewhere.
        self._stop = threading.Event()
        self._is_interrupted = False
        self._is_draining = threading.Event()
        #: Lease of its tiles; empty until it has them.
        self._lease: Mapping[str, Any] = {}

    def interrupt(self) -> None:
        """End the replica because the worker stops."""
        self._is_interrupted = True
        self._stop.set()

    def give_up(self) -> None:
        """End the replica because this worker has lost it."""
        self._stop.set()

    def drain(self) -> None:
        """End the replica when it has answered its requests."""
        self._is_draining.set()

    def run(self) -> None:
        """Run the replica to its end, and record the reason."""
        logger.info("replica begins replica=%s endpoint=%s", self._fencing.replica_id, self._claimed.endpoint)
        try:
            reason, message = self._run()
        except Exception as error:  # the thread's boundary
            logger.exception("replica broke replica=%s", self._fencing.replica_id)
            reason, message = ReplicaReason.BOX_LOST, f"the worker failed: {error!r}"
        if self._stop.is_set() and self._is_interrupted:
            reason, message = ReplicaReason.INTERRUPTED, "its worker was stopped"
        self._end(reason, message)
        self._context.notifier.wake_node(self._context.node)
        with suppress(OSError):
            remove_tree(self._folder)
        logger.info("replica ends replica=%s reason=%s message=%s", self._fencing.replica_id, reason, message)

    def _run(self) -> tuple[ReplicaReason, str | None]:
        with ExitStack() as stack:
            try:
                self._serve(stack)
            except _Ended as end:
                ended = end
            except LeaseLost as lost:
                ended = _Ended(ReplicaReason.LOST, lost.message)
            except Cancelled:
                ended = _Ended(ReplicaReason.NOT_WANTED)
            except (NotFenced, PermissionDenied, InvalidArgument) as refused:
                ended = _Ended(ReplicaReason.REFUSED, refused.message)
            except (NotFound, ContentDamaged) as missing:
                ended = _Ended(ReplicaReason.INPUT_LOST, missing.message)
            except RdukitError as error:
                ended = _Ended(ReplicaReason.NOT_READY, error.message)
            # Written before the box is stopped: until then gateways send it requests.
            if ended.reason is not ReplicaReason.DRAINED:
                self._end(ended.reason, ended.message)
        return ended.reason, ended.message

    def _end(self, reason: ReplicaReason, message: str | None) -> None:
        try:
            with self._context.database.write() as session:
                text = message[:MAX_MESSAGE] if message else None
                replicas.end(session, self._fencing, reason, text, self._context.clock.now())
            self._context.notifier.wake()
        except DBAPIError as error:
            # Its lease runs out.
            logger.warning("end not written down replica=%s error=%s", self._fencing.replica_id, error)

    def _serve(self, stack: ExitStack) -> None:
        """Serve until the replica ends, which always raises an exception."""
        with self._context.database.read() as session:
            check_walls(self._context.fences.walls, count_tenants(session))
        make_folder(self._folder)
        environment = self._bring_inputs()
        own = self._bring_box()
        socket = self._lease_tiles(stack, environment)
        box = self._start_box(stack, environment, socket, own)
        address, uid = shared_address(box)
        described = {"backend": self._context.backend.name, "id": box.id, "limits": dict(box.limits)}
        with self._context.database.write() as session:
            replicas.make_ready(session, self._fencing, address, uid, described, self._context.clock.now())
        self._context.notifier.wake()
        logger.info("replica ready replica=%s box=%s", self._fencing.replica_id, box.id)
        self._watch(box)

    def _bring_inputs(self) -> dict[str, str]:
        """Fetch PEF and checkpoint, or a bundle and its parts. Returns the variables with their paths."""
        incoming = self._folder / "in"
        remove_tree(incoming)
        incoming.mkdir()
        if self._revision.bundle_id is not None:
            with self._context.database.read() as session:
                bundle = session.get_one(ArtifactRow, self._revision.bundle_id)
                ids = {each.parent for each in parts_of(session, bundle.id)}
                parts = session.scalars(select(ArtifactRow).where(ArtifactRow.id.in_(ids))).all()
            return {BUNDLE.variable: str(bring_bundle(self._context.store, bundle, parts, incoming))}
        wanted = {PEF.variable: self._revision.pef_id, CHECKPOINT.variable: self._revision.checkpoint_id}
        variables = {}
        for variable, artifact_id in wanted.items():
            if artifact_id is None:
                continue
            with self._context.database.read() as session:
                artifact = session.get(ArtifactRow, artifact_id)
            if artifact is None:
                raise NotFound(f"artifact {artifact_id} is gone")
            target = incoming / variable.rpartition("_")[2].lower()
            if not artifact.is_folder and artifact.file_name:
                target = target / artifact.file_name
            self._context.store.materialize(artifact.digest, artifact.is_folder, target)
            variables[variable] = str(target)
        return variables

    def _bring_box(self) -> OwnBox | None:
        if self._revision.box_version is None:
            return None
        box = Selector(self._revision.box, self._revision.box_version)
        return bring_own_box(self._context, self._claimed.tenant_id, box, self._folder / "box")

    def _lease_tiles(self, stack: ExitStack, environment: dict[str, str]) -> Path:
        """Lease the tiles as soon as they are free; add the lease to ``environment``. Returns the node's socket."""
        asked = TileRequest(
            f"{self._revision.box}-serve", self._revision.tiles, self._claimed.tenant_id, self._fencing.replica_id,
            TILES_S,
        )  # fmt: skip
        snd, noted = self._context.home.snd_socket, None
        while not self._stop.is_set() and not self._is_draining.is_set():
            try:
                lease, socket = stack.enter_context(leased_tiles(snd, asked))
            except (NoResources, Unavailable) as cause:
                if cause.message != noted:
                    noted = cause.message
                    with self._context.database.write() as session:
                        replicas.note(session, self._fencing, f"waits for {self._revision.tiles} tiles: {noted}")
                with self._context.database.read() as session:
                    is_elsewhere = not replicas.is_best_here(session, self._context.node, self._revision.tiles)
                if is_elsewhere:  # the scheduler starts another replica, which that node's worker claims
                    raise _Ended(
                        ReplicaReason.NOT_WANTED, "another node now has the tiles for which it waited"
                    ) from None
                self._stop.wait(WATCH_S)
                continue
            with self._context.database.write() as session:
                replicas.note(session, self._fencing, LOADING, lease["tiles"])
            self._lease = lease
            environment |= {LEASE.variable: f"{lease['id']}:{lease['token']}", SND_SOCKET.variable: str(socket)}
            return socket
        raise Cancelled("it is no longer wanted")

    def _start_box(self, stack: ExitStack, environment: dict[str, str], socket: Path, own: OwnBox | None) -> RunningBox:
        context = self._context
        fence = context.fences.of(self._claimed.tenant_id)
        output = self._folder / "out"
        output.mkdir(exist_ok=True)
        spec = spec_of(
            context.rules, self._revision.box, BoxOwner(self._fencing.replica_id, EPOCH), self._folder / "state",
            self._folder / "in", output, environment, [socket], own=own, fence=fence,
            place=BoxPlace(self._revision.tiles, None, self._say_wait),
        )  # fmt: skip
        box = context.backend.start(spec, context.box_start_s, self._stop)

        def stop() -> None:
            try:
                box.stop(STOP_S)
            except Unavailable as error:
                logger.warning("box not stopped replica=%s id=%s error=%s", self._fencing.replica_id, box.id, error)

        stack.callback(stop)
        return box

    def _say_wait(self, box: Mapping[str, object], why: str, code: str) -> None:
        with self._context.database.write() as session:
            replicas.note(session, self._fencing, why or LOADING)

    def _watch(self, box: RunningBox) -> None:
        clock = self._context.clock
        probed_at, failures = clock.monotonic(), 0
        while not self._stop.wait(WATCH_S):
            if not self._is_up(box):
                raise _Ended(ReplicaReason.BOX_LOST, last_words(box))
            if self._is_draining.is_set() and self._may_end():
                raise _Ended(ReplicaReason.DRAINED)
            if clock.monotonic() - probed_at >= PROBE_S:
                probed_at = clock.monotonic()
                with suppress(BackendUnavailable):
                    failures = 0 if box.is_ready() else failures + 1
                if failures and is_withdrawn(self._context.home.snd_socket, self._lease):
                    raise _Ended(
                        ReplicaReason.WITHDRAWN, "its tiles were withdrawn, for example by a drain at its deadline"
                    )
                if failures >= PROBES:
                    raise _Ended(ReplicaReason.NOT_READY, "its box no longer answers")
        raise _Ended(ReplicaReason.NOT_WANTED)

    def _is_up(self, box: RunningBox) -> bool:
        try:
            return box.is_alive()
        except BackendUnavailable:
            return True

    def _may_end(self) -> bool:
        with self._context.database.read() as session:
            at = replicas.drain_ends_at(session, self._fencing, SETTLE_S, resolve(ENDPOINT_DRAIN_S))
        return at is not None and self._context.clock.now() >= at


def shared_address(box: RunningBox) -> tuple[str, int | None]:
    """Return the address of a box's REST wire for other processes of this host, and the uid that owns its socket.

    Raises:
        Unavailable: the socket does not exist.
    """
    address = parse_rest_address(box.rest_url)
    if address.path is None:
        return box.rest_url, None
    path = address.path
    if path.is_relative_to("/proc/self"):  # valid in this process only: resolve the path that was opened
        path = Path(os.readlink(path))
    try:
        found = path.lstat()
    except OSError as cause:
        raise Unavailable(f"the box reports ready, but there is no socket {path}") from cause
    if not stat.S_ISSOCK(found.st_mode):
        raise Unavailable(f"the box reports ready, but {path} is not a socket")
    return rest_address(path), found.st_uid


def last_words(box: RunningBox) -> str:
    """Return the end of a box as text, with the last lines of its log."""
    with suppress(Unavailable, OSError):
        events = [event.detail for event in box.events() if event.detail]
        return "; ".join([*events[-1:], box.logs(TAIL_LINES).strip()])
    return "its box has ended"
