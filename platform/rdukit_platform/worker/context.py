"""Context that all parts of a worker share, and the fetching of tenants' own boxes."""

from dataclasses import dataclass
from pathlib import Path

from rdukit.errors import ContentDamaged, InvalidArgument, NotFound
from rdukit.files.atomic import remove_tree
from rdukit.interfaces import Clock
from rdukit_platform.artifacts.store import BlobStore
from rdukit_platform.audit.writer import AuditWriter
from rdukit_platform.backends.contract import BoxBackend
from rdukit_platform.backends.job_boxes import BoxRules, OwnBox
from rdukit_platform.catalog.model import Selector
from rdukit_platform.catalog.own import check_may_own, find_version
from rdukit_platform.db.engine import Database
from rdukit_platform.jobs.broker import Notifier
from rdukit_platform.settings import PROCESSES, Home
from rdukit_platform.worker.heartbeat import LeaseHeartbeat
from rdukit_platform.worker.pool import BoxPool
from rdukit_platform.worker.walls import TenantFences, WallKind


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Context that all attempts of a worker share."""

    home: Home
    database: Database
    store: BlobStore
    heartbeat: LeaseHeartbeat
    notifier: Notifier
    clock: Clock
    name: str
    #: Name of the worker's node.
    node: str
    backend: BoxBackend
    rules: BoxRules
    fences: TenantFences
    #: Audit entries that are written in the background.
    audit: AuditWriter
    box_start_s: float
    backoff_s: float
    #: Pool of boxes; ``None``: each job has a box of its own.
    pool: BoxPool | None = None
    #: Address for workers of other nodes; ``None``: no jobs on several nodes.
    link_host: str | None = None


def bring_own_box(context: WorkerContext, tenant_id: str, box: Selector, target: Path) -> OwnBox:
    """Fetch a version of a box that the tenant installed; a folder is copied to ``target``.

    Raises:
        PermissionDenied: the tenant may not run boxes of its own here.
        InvalidArgument: the box is an image, but boxes are processes here.
        NotFound: there is no such version, or its content is not in the store.
    """
    remove_tree(target)
    assert box.version is not None
    try:
        with context.database.read() as session:
            # Checked again: the permission may have been revoked since the submission, and the code runs from here on.
            check_may_own(session, tenant_id, context.fences.walls.kind is WallKind.FENCE)
            row = find_version(session, tenant_id, box.name, box.version)
        if row is None:
            raise NotFound(f"there is no version {box.version} of box {box.name!r}")
        if row.image is not None:
            if context.backend.name in PROCESSES:
                raise InvalidArgument(f"box {box.name} is the image {row.image!r}, but job boxes are processes here")
            return OwnBox(image=row.digest)
        context.store.materialize(row.digest, is_folder=True, target=target)
    except (NotFound, ContentDamaged) as cause:
        raise NotFound(f"the folder of box {box} is not in the store: {cause}; install it again") from cause
    return OwnBox(folder=target)
