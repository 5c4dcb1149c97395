"""The platform's settings and the places of its state."""

import logging
import os
import re
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdukit.errors import Conflict, InvalidArgument, Unavailable
from rdukit.files.atomic import write_atomic
from rdukit.files.home import PRIVATE, close_contents, private_home
from rdukit.settings import SND_SOCKET, Setting, home_folder, parse_bool, resolve
from rdukit_platform.setting_texts import (
    not_negative,
    parse_keep_days,
    parse_labels,
    parse_node_name,
    parse_store,
    with_password,
)

logger = logging.getLogger(__name__)

#: Longest UNIX socket path that every system takes.
MAX_SOCKET_PATH: Final = 100


DATABASE_URL: Final = Setting("database.url", "", "SQLAlchemy URL; default: SQLite in the home folder.", str)
BROKER_URL: Final = Setting("broker.url", "", "Celery broker; default: the Valkey that rdukit up starts.", str)
BROKER_PASSWORD_FILE: Final = Setting(
    "broker.password_file", "",
    "File with the broker's password, for a broker.url without one; whoever starts both creates it.", str,
)  # fmt: skip
GATEWAY_HOST: Final = Setting("gateway.host", "127.0.0.1", "Address on which the gateway listens.", str)
GATEWAY_PORT: Final = Setting("gateway.port", 8080, "Port of REST and console; 0: any free port.", int)
GATEWAY_PROXIES: Final = Setting(
    "gateway.proxies", "",
    "Comma-separated addresses of proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted.", str,
)  # fmt: skip
MAX_HEADER_BYTES: Final = Setting(
    "gateway.max_header_bytes", 64 << 10, "Longest request line and headers in bytes; longer ones get 431.", int
)
MAX_BODY_BYTES: Final = Setting(
    "gateway.max_body_bytes", 8 << 20, "Longest body in bytes of a request without files; longer ones get 413.", int
)
MAX_UPLOAD_BYTES: Final = Setting(
    "gateway.max_upload_bytes", 64 << 30, "Longest body in bytes of a request with files; longer ones get 413.", int
)
MAX_CONNECTIONS: Final = Setting(
    "gateway.max_connections", 4096,
    "Concurrent connections; beyond this or the system's limit, idle connections are closed.", int,
)  # fmt: skip
GATEWAY_TLS_CERTIFICATE: Final = Setting(
    "gateway.tls_certificate", "", "File with the certificate of REST and console; empty: no TLS.", str
)
GATEWAY_TLS_KEY: Final = Setting("gateway.tls_key", "", "File with the key of `gateway.tls_certificate`.", str)
GATEWAY_TLS_CA: Final = Setting(
    "gateway.tls_ca", "", "File with the certificate authority for callers; empty: callers need no certificate.", str
)
ADDRESS_CONNECTIONS: Final = Setting(
    "gateway.address_connections", 1024,
    "Concurrent connections per address, except proxies; beyond this, its idle connections are closed.", int,
)  # fmt: skip
SILENCE_S: Final = Setting(
    "gateway.silence_s", 60.0,
    "Seconds after which a connection ends for slow headers or TLS handshake, an unread answer, or a body slower than "
    "1,024 bytes a second.",
    float,
)  # fmt: skip
MAX_STREAMS: Final = Setting("gateway.max_streams", 1000, "Concurrent streams of events and logs per tenant.", int)
GRPC_ADDRESS: Final = Setting(
    "gateway.grpc_address", "",
    "Address for gRPC, such as 127.0.0.1:8081; port 0: any free port, empty: no gRPC.", str,
)  # fmt: skip
TOKEN_RATE: Final = Setting(
    "gateway.token_rate",
    0,
    "Requests per minute and token, where each job of a batch, pipeline or sweep counts; 0: no limit.",
    int,
)
TENANT_RATE: Final = Setting("gateway.tenant_rate", 0, "Requests per minute and tenant; 0: no limit.", int)
GATEWAY_URL: Final = Setting(
    "gateway.url", "", "URL of the gateway for clients; default: the one in the home folder.", str
)
TOKEN_MAX_DAYS: Final = Setting(
    "token.max_days", 0.0, "Longest lifetime in days of new tokens, also their default; 0: no limit.",
    float,
)  # fmt: skip
TOKEN_GRACE_S: Final = Setting(
    "token.grace_s",
    3600.0,
    "Seconds that a token stays valid after its rotation, unless the request sets another time.",
    float,
)
SCHEDULE_LATE_S: Final = Setting(
    "schedule.late_s", 300.0, "Seconds by which a scheduled pipeline may start late without counting as missed.", float
)
AUDIT_DAYS: Final = Setting("audit.keep_days", 400.0, "Days for which entries of the audit log are kept.", float)
AUDIT_ROWS: Final = Setting(
    "audit.keep_rows", 1_000_000,
    "Largest number of entries in the audit log; beyond it, the actor with the most entries loses its oldest.", int,
)  # fmt: skip
BOX_COMMAND: Final = Setting(
    "worker.box_command", "", "Command that runs and describes ModelBoxes; default: this Python's rdukit_modelbox.", str
)
BOX_BACKEND: Final = Setting(
    "worker.box_backend", "process", "Backend for the ModelBoxes of jobs.", str,
    ("process", "docker", "podman", "kubernetes", "slurm"),
)  # fmt: skip
BOX_IMAGE: Final = Setting(
    "worker.box_image",
    "",
    "Image for ModelBoxes in containers, in which {box} stands for the box's name; default: rdukit/modelbox:latest.",
    str,
)
BOX_CLAIM: Final = Setting(
    "worker.box_claim", "",
    "With kubernetes: the claim that contains the home folder, and its mount path, as NAME:PATH.", str,
)  # fmt: skip
BOX_POD: Final = Setting(
    "worker.box_pod", "",
    "With kubernetes: a JSON file with additions to the Pods of jobs (labels, annotations, spec, resources, "
    "imagePullPolicy, tmpSize).", str,
)  # fmt: skip
BOX_MEMORY: Final = Setting("worker.box_memory", 0, "Memory in bytes for a job's ModelBox; 0: no limit.", int)
BOX_PIDS: Final = Setting(
    "worker.box_pids", 0, "Processes and threads of a job's ModelBox in a fence or container; 0: 2048.", int
)
BOX_ENVIRONMENT: Final = Setting(
    "worker.box_environment",
    "RDUKIT_LOG_LEVEL,RDUKIT_LOG_FORMAT,RDUKIT_TELEMETRY_RUN_SPANS,RDUKIT_TELEMETRY_SECTIONS,"
    "RDUKIT_CHECK,RDUKIT_KERNELS,RDUKIT_PRECISION,RDUKIT_ISOLATION_MODE,RDUKIT_ISOLATION_CORES,"
    "RDUKIT_ENGINE_THREADS,RDUKIT_COMPILE_WORKERS,RDUKIT_NUMERICS_TRAP,RDUKIT_HOST_FALLBACK,OMP_NUM_THREADS,"
    "RDUKIT_KERNEL_CHECK,RDUKIT_BOX_LOAD_TIMEOUT_S,RDUKIT_BOX_MAX_AUDIO_S",
    "Variables of the worker, or values from the settings file, that a job's ModelBox gets; no others.",
    str,
)
FENCE: Final = Setting(
    "worker.fence", "auto",
    "Fence for jobs' ModelBoxes that are processes, and network test for those that are Pods: auto (if available; "
    "otherwise at most one tenant), required (the worker does not start without), off (at most one tenant).",
    str, ("auto", "required", "off"),
)  # fmt: skip
FENCE_UIDS: Final = Setting(
    "worker.fence_uids", "1900000000-1900065535",
    "Range of user ids, first-last: each tenant's ModelBoxes run as a separate user if the worker is root.",
    str,
)  # fmt: skip
WARM_BOXES: Final = Setting(
    "worker.warm_boxes", "auto",
    "Whether ModelBox processes fork from a process with their imports, which takes 300 MB and saves each job some "
    "seconds: auto (except for another worker.box_command), always (the command must support fork-server) or off "
    "(each starts anew).",
    str, ("auto", "always", "off"),
)  # fmt: skip
BOX_IDLE_S: Final = Setting(
    "worker.box_idle_s", 60.0,
    "Seconds that a ModelBox waits for its tenant's next job without tiles; 0: each job gets a new one, as always in "
    "Slurm.",
    float,
)  # fmt: skip
BOX_DISK: Final = Setting(
    "worker.box_disk", 256 << 30,
    "Disk space in bytes for a job's ModelBox in a fence or container and for its output; 0: no limit.", int,
)  # fmt: skip
INSTALL_TENANTS: Final = Setting(
    "catalog.install_tenants",
    "",
    "Tenants whose jobs may run boxes that they installed: comma-separated names, *: all, -: none; default: all if "
    "job boxes are containers or fenced or there is only one tenant, else none.",
    str,
)
PROCESS: Final = "process"
KUBERNETES: Final = "kubernetes"
SLURM: Final = "slurm"
PROCESSES: Final = frozenset({PROCESS, SLURM})  # whose boxes are processes of this machine, in fences
WORKER_SLOTS: Final = Setting("worker.slots", 4, "Concurrent jobs per worker.", int)
WORKER_REPLICAS: Final = Setting("worker.replicas", 8, "Concurrent replicas of endpoints per worker.", int)
WORKER_LEASE_S: Final = Setting(
    "worker.lease_s", 8.0, "Seconds without a heartbeat after which an attempt is lost.", float
)
WORKER_START_S: Final = Setting("worker.start_s", 90.0, "Timeout in seconds for a ModelBox to become ready.", float)
JOB_MAX_ATTEMPTS: Final = Setting("job.max_attempts", 3, "Failed attempts after which a job fails.", int)
JOB_MAX_LOSSES: Final = Setting(
    "job.max_losses",
    20,
    "Number of attempts lost with their worker or box, or to a slow one, after which a job fails.",
    int,
)
JOB_BACKOFF_S: Final = Setting(
    "job.backoff_s", 1.0, "Pause in seconds before the second attempt; it doubles with each further one.", float
)
JOB_TILES: Final = Setting("job.tiles", 4, "Default number of tiles for jobs that need an RDU (train, infer).", int)
JOB_MAX_PRIORITY: Final = Setting("job.max_priority", 100, "Highest priority that a job may ask for.", int)
SCHEDULER_TENANT_JOBS: Final = Setting("scheduler.tenant_jobs", 0, "Concurrent jobs per tenant; 0: no limit.", int)
ARTIFACT_KEEP_DAYS: Final = Setting(
    "artifacts.keep_days", "0",
    "Days for which unneeded and unpinned artifacts are kept: a number for all, or by kind, such as "
    "`checkpoint=90,report=30,*=0`; 0: forever.",
    parse_keep_days,
)  # fmt: skip
ARTIFACT_GRACE_S: Final = Setting(
    "artifacts.grace_s", 3600.0, "Age in seconds from which content that no artifact names is removed.",
    not_negative(float),
)  # fmt: skip
ARTIFACT_TENANT_BYTES: Final = Setting(
    "artifacts.tenant_bytes", 0,
    "Bytes of artifacts per tenant without its own limit; 0: no limit.",
    not_negative(int),
)  # fmt: skip
ENDPOINT_DRAIN_S: Final = Setting(
    "endpoint.drain_s", 300.0, "Seconds for a replica that is no longer wanted to finish its requests.", float
)
ENDPOINT_WAIT_S: Final = Setting(
    "endpoint.wait_s", 20.0, "Seconds that a call waits for a ready replica if its endpoint wants one.", float
)
ENDPOINT_ANSWER_S: Final = Setting(
    "endpoint.answer_s", 300.0, "Seconds without a byte of a replica's answer after which a call ends.", float
)
NODE_NAME: Final = Setting(
    "node.name",
    "",
    "Name of this machine's node on the platform; default: its host name when it first joined.",
    parse_node_name,
)
NODE_LABELS: Final = Setting(
    "node.labels", "", "Labels of this machine's node, such as `zone=a,generation=sn30`.", parse_labels
)
NODE_LINK_HOST: Final = Setting(
    "node.link_host", "",
    "Address or name at which other nodes reach this machine, so that a training's members may run on several nodes; "
    "the network must belong to the nodes alone. Empty: no such trainings.", str,
)  # fmt: skip
NODE_LOST_S: Final = Setting(
    "node.lost_s", 4.0,
    "Seconds without a heartbeat after which a node is lost and its jobs move to another one.", float,
)  # fmt: skip
ARTIFACTS_STORE: Final = Setting(
    "artifacts.store", "",
    "Store of artifacts, the same for all nodes: a folder, or `s3://BUCKET/PREFIX`; default: artifacts in the home "
    "folder.", parse_store,
)  # fmt: skip
ARTIFACTS_COPY_BYTES: Final = Setting(
    "artifacts.copy_bytes", 20 << 30,
    "Largest size in bytes of the local copies of a bucket's content; least recently used copies are removed "
    "first.", not_negative(int),
)  # fmt: skip
UP_NODE: Final = Setting("up.node", True, "Whether rdukit up starts a node daemon.", parse_bool)


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below one home folder."""

    folder: Path

    @property
    def artifacts(self) -> Path:
        """Folder of artifacts, unless they are in a bucket."""
        configured = "" if self.bucket else resolve(ARTIFACTS_STORE)
        return Path(configured).expanduser().absolute() if configured else self.folder / "artifacts"

    @property
    def bucket(self) -> str:
        """``s3://BUCKET/PREFIX`` of artifacts; empty: they are in a folder."""
        configured = resolve(ARTIFACTS_STORE)
        return configured if "://" in configured else ""

    @property
    def copies(self) -> Path:
        """Folder with copies of a bucket's content."""
        return self.folder / "copies"

    @property
    def pools(self) -> Path:
        """Folder of the boxes that stay for their tenant's next job, with one for each worker."""
        return self.folder / "pools"

    @property
    def work(self) -> Path:
        """Folder of the jobs that are not finished, one in it for each."""
        return self.folder / "work"

    @property
    def tenants(self) -> Path:
        """Folder with a folder for each tenant whose jobs are fenced: the home of its boxes."""
        return self.folder / "tenants"

    @property
    def installing(self) -> Path:
        """Folder of boxes that are being read; usually empty."""
        return self.folder / "installing"

    @property
    def restoring(self) -> Path:
        """Folder of a restore in progress; while it exists, services of this home folder do not start."""
        return self.folder / "restoring"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def broker(self) -> Path:
        return self.folder / "broker"

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    @property
    def login_file(self) -> Path:
        """File that ``rdukit login`` writes: ``{"url", "token"}``; no url: the platform of this home folder."""
        return self.folder / "login.json"

    @property
    def contexts_file(self) -> Path:
        """File of ``rdukit context``: platforms by names, with a token for each, and which is in use."""
        return self.folder / "contexts.json"

    @property
    def broker_socket(self) -> Path:
        return self.run / "valkey.sock"

    @property
    def snd_socket(self) -> Path:
        configured = resolve(SND_SOCKET)
        return Path(configured) if configured else self.run / "snd.sock"

    @property
    def node_id_file(self) -> Path:
        """File that distinguishes this home folder's node from another one of the same name."""
        return self.folder / "node-id"

    @property
    def node_name_file(self) -> Path:
        """File with the name of this home folder's node, if no setting names it."""
        return self.folder / "node-name"

    @property
    def up_lock(self) -> Path:
        """File that ``rdukit up`` has locked, with its process id."""
        return self.run / "up.lock"

    def find_up(self) -> int | None:
        """Return the process of the ``rdukit up`` with this home; ``None``: none runs.

        The lock is not tried: that would block an ``rdukit up`` that begins just now.
        """
        with suppress(OSError, ValueError):
            pid = int(self.up_lock.read_text())
            # A killed process leaves the file, and another process may have its number by now.
            if b"up" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
        return None

    @property
    def address_file(self) -> Path:
        """File that ``rdukit up`` writes when it is ready: ``{"url", "pid", …}``."""
        return self.run / "platform.json"

    def node_name(self) -> str:
        """Return the name of this home folder's node; without a setting, the host's name at the first call."""
        if configured := resolve(NODE_NAME):
            return configured
        try:
            return self.node_name_file.read_text().strip()
        except FileNotFoundError:
            host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64].strip(".-_") or "local"
            write_atomic(self.node_name_file, f"{host}\n".encode(), 0o600)
            return self.node_name_file.read_text().strip()

    def database_url(self) -> str:
        return resolve(DATABASE_URL) or f"sqlite:///{self.folder / 'db.sqlite'}"

    def database_file(self) -> Path | None:
        """Return the file of the database, if it is one."""
        url = self.database_url()
        return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None

    def broker_url(self) -> str:
        """Return the broker's URL with its password.

        Raises:
            Unavailable: the password's file is not there.
        """
        url, file = resolve(BROKER_URL) or f"redis+socket://{self.broker_socket}", resolve(BROKER_PASSWORD_FILE)
        if not file:
            return url
        try:
            return with_password(url, Path(file).read_text().strip())
        except OSError as cause:
            raise Unavailable(f"{BROKER_PASSWORD_FILE.name}: {file} cannot be read: {cause.strerror}") from cause


def current_home() -> Home:
    """Return the home folder in force."""
    return Home(home_folder())


def checked_home() -> Home:
    """Return the home folder, made if need be, closed to other users, its socket paths short enough.

    Raises:
        InvalidArgument: the path is too long for the sockets inside it.
        PermissionDenied: it is another user's, or a folder that others use too.
        Conflict: a restore in it has not ended.
    """
    home = current_home()
    if home.restoring.exists():
        raise Conflict(f"a restore into {home.folder} is incomplete; run the same rdukit restore again to continue")
    longest = max(len(os.fsencode(path)) for path in (home.broker_socket, home.snd_socket))
    if longest > MAX_SOCKET_PATH:
        raise InvalidArgument(
            f"home folder {home.folder} is too long: a socket in it would have {longest} characters; expected at most "
            f"{MAX_SOCKET_PATH}; set RDUKIT_HOME to a shorter path"
        )
    private_home()
    for folder in (home.run, home.copies if home.bucket else home.artifacts, home.work, home.logs):
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    for path in close_contents(home.folder):
        logger.warning("open to other users, closed now path=%s", path)
    return home


def box_command() -> list[str]:
    """Return the command line that ModelBox sub-commands are appended to."""
    configured = resolve(BOX_COMMAND)
    return configured.split() if configured else [sys.executable, "-m", "rdukit_modelbox"]
