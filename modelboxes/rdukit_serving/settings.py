"""Settings of synchronous inference."""

from pathlib import Path
from typing import Final

from rdukit.settings import Setting, home_folder, parse_bool

PEF: Final = Setting("box.pef", "", "PEF that a box serves from the beginning; also --pef.", str)
CHECKPOINT: Final = Setting("box.checkpoint", "", "Parameters to serve it with; also --checkpoint.", str)
BUNDLE: Final = Setting(
    "box.bundle", "", "File with a bundle of experts that a box serves from the beginning instead of a PEF.", str
)
GRPC: Final = Setting(
    "box.grpc", True, "Serve gRPC beside REST. The platform sets it to false for the boxes of its jobs.", parse_bool
)
LOAD_TIMEOUT_S: Final = Setting("box.load_timeout_s", 60.0, "Seconds that loading a model may take.", float)
INFER_TIMEOUT_S: Final = Setting(
    "box.infer_timeout_s", 30.0, "Seconds one batch may take before its process is killed and started again.", float
)
DRAIN_S: Final = Setting(
    "box.drain_s", 30.0, "Seconds that waiting requests have to finish when a model version is unloaded.", float
)
MAX_QUEUE: Final = Setting(
    "box.max_queue", 1024, "Most inference requests that wait; more are refused with 429. A box may say its own.", int
)
RESTART_BACKOFF_S: Final = Setting(
    "box.restart_backoff_s", 1.0, "First pause before a model that cannot be loaded again is tried once more.", float
)
READY_TIMEOUT_S: Final = Setting(
    "box.ready_timeout_s", 2.0, "Seconds that the small inference of a readiness probe may take.", float
)
MAX_INFER_BYTES: Final = Setting("box.max_infer_bytes", 64 << 20, "Largest body of an inference request.", int)
TEMPLATE_S: Final = Setting("box.template_s", 2.0, "Seconds that a model's chat template may take for one chat.", float)
MAX_AUDIO_S: Final = Setting(
    "box.max_audio_s", 1500.0, "Longest audio in seconds that a speech model takes; longer files get 400.", float
)
DRAFT_PEF: Final = Setting(
    "box.draft_pef",
    "",
    "PEF of a smaller language model that guesses the texts of the served one; also --draft-pef.",
    str,
)
DRAFT_CHECKPOINT: Final = Setting("box.draft_checkpoint", "", "Parameters of the draft; also --draft-checkpoint.", str)
SPECULATION: Final = Setting(
    "box.speculation", 7, "Most tokens that are guessed for a text and tried in one run of its model; 0: none.", int
)
TOKENS: Final = Setting(
    "box.tokens", "", "File with one token a line that callers must send; empty: no token is asked for.", str
)
ACCESS_LOG: Final = Setting(
    "box.access_log", "", "File that gets one JSON line per inference request; - is stdout, empty: none.", str
)

ROWS_IDLE_S: Final = Setting(
    "box.rows_idle_s", 120.0, "Seconds after which an idle process for synchronous inference ends.", float
)
MAX_BODY_BYTES: Final = Setting(
    "box.max_body_bytes", 64 << 20, "Longest body of a request to the control routes; a longer one gets 413.", int
)
MAX_HEADER_BYTES: Final = Setting(
    "box.max_header_bytes", 32 << 10, "Longest request line and headers; longer ones get 431.", int
)
MAX_CONNECTIONS: Final = Setting(
    "box.max_connections", 4096,
    "Connections at once over REST; beyond, and beyond what the system allows, those that ask nothing are closed.", int,
)  # fmt: skip
ADDRESS_CONNECTIONS: Final = Setting(
    "box.address_connections", 1024,
    "Connections at once of one address; beyond, those of it that ask nothing are closed.", int,
)  # fmt: skip
SILENCE_S: Final = Setting(
    "box.silence_s", 60.0,
    "Seconds for all headers or a TLS handshake, without reading an answer, or that a request's body is behind 1,024 "
    "bytes a second, that end a connection.",
    float,
)  # fmt: skip
HOSTS: Final = Setting(
    "box.hosts", "",
    "Names with commas that a box without tokens answers to besides loopback names and its address; *: all.", str,
)  # fmt: skip
TLS_CERTIFICATE: Final = Setting(
    "box.tls_certificate", "", "File with the certificate of REST and gRPC; empty: they speak plainly.", str
)
TLS_KEY: Final = Setting("box.tls_key", "", "File with the key of `box.tls_certificate`.", str)
TLS_CA: Final = Setting(
    "box.tls_ca", "", "File with the authority whose certificates callers must have; empty: they need none.", str
)

MAX_QUEUE_DELAY_US: Final = Setting(
    "box.max_queue_delay_us", -1,
    "Microseconds that a batch with room waits for more requests; 0: none, -1: learned from whether callers come.", int,
)  # fmt: skip
FAST_PATH: Final = Setting(
    "box.fast_path", True, "Answer plain REST inferences on paths that answered before without ASGI.", parse_bool
)


def running_file(process: int) -> Path:
    """Return the file that a server started by hand has in the home folder while it runs."""
    return home_folder() / "run" / "boxes" / f"{process}.json"
