"""The platform's settings and where its state lies."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit.settings import Setting, home_folder, parse_bool, resolve

#: Longest UNIX socket path that every system takes.
MAX_SOCKET_PATH: Final = 100

DATABASE_URL: Final = Setting("database.url", "", "SQLAlchemy URL; default: SQLite in the home folder.", str)
BROKER_URL: Final = Setting("broker.url", "", "Celery broker; default: the Valkey that rdukit up starts.", str)
SND_SOCKET: Final = Setting(
    "snd.socket", "", "Socket of the node daemon; default: run/snd.sock in the home folder.", str
)
GATEWAY_HOST: Final = Setting("gateway.host", "127.0.0.1", "Address that the gateway listens on.", str)
GATEWAY_PORT: Final = Setting("gateway.port", 8080, "Port of REST and console; 0 takes a free one.", int)
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
SILENCE_S: Final = Setting(
    "gateway.silence_s", 60.0,
    "Seconds without a byte of a request's body, for all of its headers, or without reading, that end a connection.",
    float,
)  # fmt: skip
MAX_STREAMS: Final = Setting(
    "gateway.max_streams", 1000, "Streams of events and logs that one tenant may follow at once.", int
)
GATEWAY_URL: Final = Setting(
    "gateway.url", "", "Where clients find the gateway; default: the one in the home folder.", str
)
TOKEN: Final = Setting("token", "", "API token of clients; default: the file token in the home folder.", str)
BOX_COMMAND: Final = Setting(
    "worker.box_command", "", "Command that runs and describes ModelBoxes; default: this Python's rdukit_modelbox.", str
)
BOX_BACKEND: Final = Setting(
    "worker.box_backend", "process", "What runs the ModelBoxes of jobs.", str, ("process", "docker", "podman")
)
BOX_IMAGE: Final = Setting(
    "worker.box_image",
    "",
    "Image of ModelBoxes that run as containers, {box} in it is the box's name; default: rdukit/modelbox:latest.",
    str,
)
BOX_MEMORY: Final = Setting("worker.box_memory", 0, "Bytes that a job's ModelBox may use; 0: no limit.", int)
BOX_PIDS: Final = Setting(
    "worker.box_pids", 0, "Processes and threads of a job's ModelBox that is a container; 0: no limit.", int
)
BOX_ENVIRONMENT: Final = Setting(
    "worker.box_environment",
    "RDUKIT_LOG_LEVEL,RDUKIT_CHECK,RDUKIT_KERNELS,RDUKIT_ISOLATION_MODE,RDUKIT_ISOLATION_CORES,OMP_NUM_THREADS",
    "Variables of the worker that a ModelBox that is a container gets too.",
    str,
)
INSTALL_TENANTS: Final = Setting(
    "catalog.install_tenants",
    "",
    "Tenants whose jobs may run boxes that they installed: names with commas, * for all, - for none; default: all "
    "where jobs' boxes are containers or there is only one tenant, else none.",
    str,
)
#: The backend whose boxes are processes of the worker's user.
PROCESS: Final = "process"
WORKER_SLOTS: Final = Setting("worker.slots", 4, "Jobs that one worker runs at once.", int)
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
SCHEDULER_POLL_S: Final = Setting("scheduler.poll_s", 0.5, "Longest pause between two looks at the queue.", float)
SCHEDULER_REPUBLISH_S: Final = Setting(
    "scheduler.republish_s", 5.0, "Seconds after which a message that no worker claimed is sent again.", float
)
SCHEDULER_TENANT_JOBS: Final = Setting(
    "scheduler.tenant_jobs", 0, "Jobs of one tenant that may run at once; 0: no limit.", int
)
SCHEDULER_STARVE_S: Final = Setting(
    "scheduler.starve_s", 60.0, "Seconds after which a waiting job lets no later one past it.", float
)
UP_NODE: Final = Setting("up.node", True, "Whether rdukit up starts a node daemon.", parse_bool)

PLATFORM_SETTINGS: Final = (
    DATABASE_URL,
    BROKER_URL,
    SND_SOCKET,
    GATEWAY_HOST,
    GATEWAY_PORT,
    GATEWAY_URL,
    MAX_HEADER_BYTES,
    MAX_BODY_BYTES,
    MAX_UPLOAD_BYTES,
    MAX_CONNECTIONS,
    SILENCE_S,
    MAX_STREAMS,
    TOKEN,
    BOX_COMMAND,
    BOX_BACKEND,
    BOX_IMAGE,
    BOX_MEMORY,
    BOX_PIDS,
    BOX_ENVIRONMENT,
    INSTALL_TENANTS,
    WORKER_SLOTS,
    WORKER_LEASE_S,
    WORKER_START_S,
    JOB_MAX_ATTEMPTS,
    JOB_MAX_LOSSES,
    JOB_BACKOFF_S,
    JOB_TILES,
    SCHEDULER_POLL_S,
    SCHEDULER_REPUBLISH_S,
    SCHEDULER_TENANT_JOBS,
    SCHEDULER_STARVE_S,
    UP_NODE,
)


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below one home folder."""

    folder: Path

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    @property
    def work(self) -> Path:
        """One folder per job that is not finished."""
        return self.folder / "work"

    @property
    def installing(self) -> Path:
        """Folders of boxes that are being read; empty but for moments."""
        return self.folder / "installing"

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
    def broker_socket(self) -> Path:
        return self.run / "valkey.sock"

    @property
    def snd_socket(self) -> Path:
        configured = resolve(SND_SOCKET)
        return Path(configured) if configured else self.run / "snd.sock"

    @property
    def address_file(self) -> Path:
        """Written by ``rdukit up`` when it is ready: ``{"url", "pid", …}``."""
        return self.run / "platform.json"

    def database_url(self) -> str:
        return resolve(DATABASE_URL) or f"sqlite:///{self.folder / 'db.sqlite'}"

    def broker_url(self) -> str:
        return resolve(BROKER_URL) or f"redis+socket://{self.broker_socket}"


def current_home() -> Home:
    """The home folder in force."""
    return Home(home_folder())


def checked_home() -> Home:
    """The home folder, created (0700), its socket paths short enough.

    Raises:
        InvalidArgument: the path is too long for the sockets inside it.
    """
    home = current_home()
    longest = max(len(os.fsencode(path)) for path in (home.broker_socket, home.snd_socket))
    if longest > MAX_SOCKET_PATH:
        raise InvalidArgument(
            f"home folder {home.folder} is too long: a socket in it would have {longest} characters, "
            f"legal are {MAX_SOCKET_PATH}; set RDUKIT_HOME to a shorter path"
        )
    home.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.run.mkdir(mode=0o700, exist_ok=True)
    return home


def box_command() -> list[str]:
    """The command line that ModelBox sub-commands are appended to."""
    configured = resolve(BOX_COMMAND)
    return configured.split() if configured else [sys.executable, "-m", "rdukit_modelbox"]
