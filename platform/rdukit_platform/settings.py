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
    "File with the broker's password, for a broker.url without one; whoever starts both makes it.", str,
)  # fmt: skip
GATEWAY_HOST: Final = Setting("gateway.host", "127.0.0.1", "Address that the gateway listens on.", str)
GATEWAY_PORT: Final = Setting("gateway.port", 8080, "Port of REST and console; 0 takes a free one.", int)
GATEWAY_PROXIES: Final = Setting(
    "gateway.proxies", "",
    "Addresses with commas of proxies in front, whose X-Forwarded-For and X-Forwarded-Proto are believed.", str,
)  # fmt: skip
MAX_HEADER_BYTES: Final = Setting(
    "gateway.max_header_bytes", 64 << 10, "Longest request line and headers; longer ones get 431.", int
)
MAX_BODY_BYTES: Final = Setting(
    "gateway.max_body_bytes", 8 << 20, "Longest body of a request without files; a longer one gets 413.", int
)
MAX_UPLOAD_BYTES: Final = Setting(
    "gateway.max_upload_bytes", 64 << 30, "Longest body of a request with files; a longer one gets 413.", int
)
MAX_CONNECTIONS: Final = Setting(
    "gateway.max_connections", 4096,
    "Connections at once; beyond, and beyond what the system allows, those that ask nothing are closed.", int,
)  # fmt: skip
GATEWAY_TLS_CERTIFICATE: Final = Setting(
    "gateway.tls_certificate", "", "File with the certificate of REST and console; empty: they speak plainly.", str
)
GATEWAY_TLS_KEY: Final = Setting("gateway.tls_key", "", "File with the key of `gateway.tls_certificate`.", str)
GATEWAY_TLS_CA: Final = Setting(
    "gateway.tls_ca", "", "File with the authority whose certificates callers must have; empty: they need none.", str
)
ADDRESS_CONNECTIONS: Final = Setting(
    "gateway.address_connections", 1024,
    "Connections at once of one address, proxies aside; beyond, those of it that ask nothing are closed.", int,
)  # fmt: skip
SILENCE_S: Final = Setting(
    "gateway.silence_s", 60.0,
    "Seconds for all headers or a TLS handshake, without reading an answer, or that a request's body is behind 1,024 "
    "bytes a second, that end a connection.",
    float,
)  # fmt: skip
MAX_STREAMS: Final = Setting(
    "gateway.max_streams", 1000, "Streams of events and logs that one tenant may follow at once.", int
)
GRPC_ADDRESS: Final = Setting(
    "gateway.grpc_address", "",
    "Where the gateway serves gRPC, such as 127.0.0.1:8081; port 0 takes a free one, empty: it is not served.", str,
)  # fmt: skip
TOKEN_RATE: Final = Setting(
    "gateway.token_rate",
    0,
    "Requests a minute that are served of one token, each job of a batch, pipeline or sweep being one; 0: any.",
    int,
)
TENANT_RATE: Final = Setting(
    "gateway.tenant_rate", 0, "Requests a minute that are served of all tokens of one tenant; 0: any number.", int
)
GATEWAY_URL: Final = Setting(
    "gateway.url", "", "Where clients find the gateway; default: the one in the home folder.", str
)
TOKEN_MAX_DAYS: Final = Setting(
    "token.max_days", 0.0, "Longest life of tokens that are made, which those have that ask for none; 0: no limit.",
    float,
)  # fmt: skip
TOKEN_GRACE_S: Final = Setting(
    "token.grace_s", 3600.0, "Seconds that a token stays valid after it was rotated, unless asked otherwise.", float
)
SCHEDULE_LATE_S: Final = Setting(
    "schedule.late_s", 300.0, "Seconds by which a scheduled pipeline may be late and has not been missed.", float
)
AUDIT_DAYS: Final = Setting("audit.keep_days", 400.0, "Days that entries of the audit log are kept.", float)
AUDIT_ROWS: Final = Setting(
    "audit.keep_rows", 1_000_000,
    "Entries of the audit log that are kept; beyond, whoever has the most of them loses its oldest ones.", int,
)  # fmt: skip
BOX_COMMAND: Final = Setting(
    "worker.box_command", "", "Command that runs and describes ModelBoxes; default: this Python's rdukit_modelbox.", str
)
BOX_BACKEND: Final = Setting(
    "worker.box_backend", "process", "What runs the ModelBoxes of jobs.", str,
    ("process", "docker", "podman", "kubernetes", "slurm"),
)  # fmt: skip
BOX_IMAGE: Final = Setting(
    "worker.box_image",
    "",
    "Image of ModelBoxes that run as containers, {box} in it is the box's name; default: rdukit/modelbox:latest.",
    str,
)
BOX_CLAIM: Final = Setting(
    "worker.box_claim", "",
    "With kubernetes: the claim that the home folder lies in, and where it is mounted, as NAME:PATH.", str,
)  # fmt: skip
BOX_POD: Final = Setting(
    "worker.box_pod", "",
    "With kubernetes: a JSON file with what Pods of jobs have beside (labels, annotations, spec, resources, "
    "imagePullPolicy, tmpSize).", str,
)  # fmt: skip
BOX_MEMORY: Final = Setting("worker.box_memory", 0, "Bytes that a job's ModelBox may use; 0: no limit.", int)
BOX_PIDS: Final = Setting(
    "worker.box_pids", 0, "Processes and threads of a job's ModelBox in a fence or container; 0: 2048.", int
)
BOX_ENVIRONMENT: Final = Setting(
    "worker.box_environment",
    "RDUKIT_LOG_LEVEL,RDUKIT_LOG_FORMAT,RDUKIT_TELEMETRY_RUN_SPANS,RDUKIT_TELEMETRY_SECTIONS,"
    "RDUKIT_CHECK,RDUKIT_KERNELS,RDUKIT_PRECISION,RDUKIT_ISOLATION_MODE,RDUKIT_ISOLATION_CORES,"
    "RDUKIT_ENGINE_THREADS,RDUKIT_COMPILE_WORKERS,RDUKIT_NUMERICS_TRAP,RDUKIT_HOST_FALLBACK,OMP_NUM_THREADS,"
    "RDUKIT_KERNEL_CHECK,RDUKIT_BOX_LOAD_TIMEOUT_S,RDUKIT_BOX_MAX_AUDIO_S",
    "Variables of the worker that a job's ModelBox gets too, or what the settings file says instead; no others.",
    str,
)
FENCE: Final = Setting(
    "worker.fence", "auto",
    "Whether jobs' ModelBoxes that are processes are fenced, and the network of those that are Pods is tried: auto "
    "(where it can be had; without it there is one tenant at most), required (the worker does not start without), off "
    "(one tenant at most).",
    str, ("auto", "required", "off"),
)  # fmt: skip
FENCE_UIDS: Final = Setting(
    "worker.fence_uids", "1900000000-1900065535",
    "Users of the machine, first-last: each tenant's ModelBoxes have one of their own, where the worker is root.",
    str,
)  # fmt: skip
WARM_BOXES: Final = Setting(
    "worker.warm_boxes", "auto",
    "Whether jobs' ModelBoxes that are processes are forked from one that has imported what they need, which takes 300 "
    "MB and saves each job some seconds: auto (not those of another worker.box_command), always (it must know "
    "fork-server) or off (each is started anew).",
    str, ("auto", "always", "off"),
)  # fmt: skip
BOX_IDLE_S: Final = Setting(
    "worker.box_idle_s", 60.0,
    "Seconds that a ModelBox waits for its tenant's next job without tiles; 0: each job gets a new one. In Slurm each "
    "does.",
    float,
)  # fmt: skip
BOX_DISK: Final = Setting(
    "worker.box_disk", 256 << 30,
    "Bytes that a job's ModelBox in a fence or container, and its output, may have on the disk; 0: no limit.", int,
)  # fmt: skip
INSTALL_TENANTS: Final = Setting(
    "catalog.install_tenants",
    "",
    "Tenants whose jobs may run boxes that they installed: names with commas, * for all, - for none; default: all "
    "where jobs' boxes are containers or fenced or there is only one tenant, else none.",
    str,
)
PROCESS: Final = "process"
KUBERNETES: Final = "kubernetes"
SLURM: Final = "slurm"
PROCESSES: Final = frozenset({PROCESS, SLURM})  # whose boxes are processes of this machine, in fences
WORKER_SLOTS: Final = Setting("worker.slots", 4, "Jobs that one worker runs at once.", int)
WORKER_REPLICAS: Final = Setting("worker.replicas", 8, "Replicas of endpoints that one worker runs at once.", int)
WORKER_LEASE_S: Final = Setting(
    "worker.lease_s", 8.0, "Seconds without a heartbeat after which an attempt is lost.", float
)
WORKER_START_S: Final = Setting("worker.start_s", 90.0, "Seconds that a ModelBox may take to become ready.", float)
JOB_MAX_ATTEMPTS: Final = Setting("job.max_attempts", 3, "Failed attempts after which a job fails.", int)
JOB_MAX_LOSSES: Final = Setting(
    "job.max_losses", 20, "Attempts lost with their worker or box, or to a slow one, after which a job fails.", int
)
JOB_BACKOFF_S: Final = Setting(
    "job.backoff_s", 1.0, "Wait before the second attempt; doubles with each further one.", float
)
JOB_TILES: Final = Setting("job.tiles", 4, "Tiles of a job that names none and needs an RDU (train, infer).", int)
JOB_MAX_PRIORITY: Final = Setting("job.max_priority", 100, "Highest priority that a job may ask for.", int)
SCHEDULER_TENANT_JOBS: Final = Setting(
    "scheduler.tenant_jobs", 0, "Jobs of one tenant that may run at once; 0: no limit.", int
)
ARTIFACT_KEEP_DAYS: Final = Setting(
    "artifacts.keep_days", "0",
    "Days that artifacts are kept that nothing needs and nobody pinned: a number for all, or by kind, such as "
    "`checkpoint=90,report=30,*=0`; 0: for ever.",
    parse_keep_days,
)  # fmt: skip
ARTIFACT_GRACE_S: Final = Setting(
    "artifacts.grace_s", 3600.0, "Age in seconds below which content that no artifact names is not yet removed.",
    not_negative(float),
)  # fmt: skip
ARTIFACT_TENANT_BYTES: Final = Setting(
    "artifacts.tenant_bytes", 0,
    "Bytes of artifacts that a tenant may keep, unless it has a number of its own; 0: any number.",
    not_negative(int),
)  # fmt: skip
ENDPOINT_DRAIN_S: Final = Setting(
    "endpoint.drain_s", 300.0, "Seconds that a replica which is not wanted any more has to finish its requests.", float
)
ENDPOINT_WAIT_S: Final = Setting(
    "endpoint.wait_s", 20.0, "Seconds that a call waits for a ready replica, where its endpoint wants one.", float
)
ENDPOINT_ANSWER_S: Final = Setting(
    "endpoint.answer_s", 300.0, "Seconds without a byte of a replica's answer that end a call.", float
)
NODE_NAME: Final = Setting(
    "node.name",
    "",
    "Name of this machine's node on the platform; default: the host's name, when it joined first.",
    parse_node_name,
)
NODE_LABELS: Final = Setting(
    "node.labels", "", "Labels of this machine's node, such as `zone=a,generation=sn30`.", parse_labels
)
NODE_LINK_HOST: Final = Setting(
    "node.link_host", "",
    "Address or name at which other nodes reach this machine: members of a training may be spread over it and them. "
    "Their network is to be the nodes' own. Empty: none are.", str,
)  # fmt: skip
NODE_LOST_S: Final = Setting(
    "node.lost_s", 4.0,
    "Seconds of silence after which a node is lost; where there is another, its jobs go there.", float,
)  # fmt: skip
ARTIFACTS_STORE: Final = Setting(
    "artifacts.store", "",
    "Where artifacts are, the same for all nodes: a folder, or `s3://BUCKET/PREFIX`; default: artifacts in the home "
    "folder.", parse_store,
)  # fmt: skip
ARTIFACTS_COPY_BYTES: Final = Setting(
    "artifacts.copy_bytes", 20 << 30,
    "Bytes of a bucket's content that a machine keeps copies of in its home folder at most, the longest unused going "
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
        raise Conflict(
            f"a restore into {home.folder} has not ended; run the same rdukit restore again, which goes on with it"
        )
    longest = max(len(os.fsencode(path)) for path in (home.broker_socket, home.snd_socket))
    if longest > MAX_SOCKET_PATH:
        raise InvalidArgument(
            f"home folder {home.folder} is too long: a socket in it would have {longest} characters, "
            f"legal are {MAX_SOCKET_PATH}; set RDUKIT_HOME to a shorter path"
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
