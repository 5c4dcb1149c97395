"""Settings of synchronous inference."""

from pathlib import Path
from typing import Final

from rdukit.settings import Setting, home_folder, parse_bool

LOAD_TIMEOUT_S: Final = Setting("box.load_timeout_s", 60.0, "Timeout in seconds for loading a model.", float)
INFER_TIMEOUT_S: Final = Setting(
    "box.infer_timeout_s",
    30.0,
    "Timeout in seconds for a batch, after which its process is killed and restarted.",
    float,
)
DRAIN_S: Final = Setting(
    "box.drain_s", 30.0, "Seconds for waiting requests to finish when a model version is unloaded.", float
)
MAX_QUEUE: Final = Setting(
    "box.max_queue",
    1024,
    "Largest number of waiting inference requests; more are refused with 429. A box may set its own.",
    int,
)
RESTART_BACKOFF_S: Final = Setting(
    "box.restart_backoff_s", 1.0, "First pause in seconds before another try to reload a model.", float
)
READY_TIMEOUT_S: Final = Setting(
    "box.ready_timeout_s", 2.0, "Timeout in seconds for the small inference of a readiness probe.", float
)
MAX_INFER_BYTES: Final = Setting("box.max_infer_bytes", 64 << 20, "Largest body of an inference request in bytes.", int)
TEMPLATE_S: Final = Setting("box.template_s", 2.0, "Timeout in seconds for a model's chat template on one chat.", float)
MAX_AUDIO_S: Final = Setting(
    "box.max_audio_s", 1500.0, "Longest audio in seconds for a speech model; longer files get 400.", float
)
DRAFT_PEF: Final = Setting(
    "box.draft_pef",
    "",
    "PEF of a smaller draft model for speculative decoding; also --draft-pef.",
    str,
)
DRAFT_CHECKPOINT: Final = Setting(
    "box.draft_checkpoint", "", "Parameters of the draft model; also --draft-checkpoint.", str
)
SPECULATION: Final = Setting(
    "box.speculation", 7, "Largest number of drafted tokens that one run of the model verifies; 0: none.", int
)
TOKENS: Final = Setting("box.tokens", "", "File with valid tokens, one per line; empty: callers need no token.", str)
ACCESS_LOG: Final = Setting(
    "box.access_log", "", "File for one JSON line per inference request; -: stdout, empty: none.", str
)

ROWS_IDLE_S: Final = Setting(
    "box.rows_idle_s", 120.0, "Seconds after which an idle process for synchronous inference ends.", float
)
MAX_BODY_BYTES: Final = Setting(
    "box.max_body_bytes",
    64 << 20,
    "Longest body in bytes of a request to the control routes; longer ones get 413.",
    int,
)
MAX_HEADER_BYTES: Final = Setting(
    "box.max_header_bytes", 32 << 10, "Longest request line and headers in bytes; longer ones get 431.", int
)
MAX_CONNECTIONS: Final = Setting(
    "box.max_connections", 4096,
    "Concurrent REST connections; beyond this or the system's limit, idle connections are closed.", int,
)  # fmt: skip
ADDRESS_CONNECTIONS: Final = Setting(
    "box.address_connections", 1024,
    "Concurrent connections per address; beyond this, its idle connections are closed.", int,
)  # fmt: skip
SILENCE_S: Final = Setting(
    "box.silence_s", 60.0,
    "Seconds after which a connection ends for slow headers or TLS handshake, an unread answer, or a body slower than "
    "1,024 bytes a second.",
    float,
)  # fmt: skip
HOSTS: Final = Setting(
    "box.hosts", "",
    "Comma-separated host names that a box without tokens accepts besides loopback names and its address; *: all.", str,
)  # fmt: skip
TLS_CERTIFICATE: Final = Setting(
    "box.tls_certificate", "", "File with the certificate for REST and gRPC; empty: no TLS.", str
)
TLS_KEY: Final = Setting("box.tls_key", "", "File with the key of `box.tls_certificate`.", str)
TLS_CA: Final = Setting(
    "box.tls_ca", "", "File with the certificate authority for callers; empty: callers need no certificate.", str
)

MAX_QUEUE_DELAY_US: Final = Setting(
    "box.max_queue_delay_us", -1,
    "Microseconds that a batch with free rows waits for more requests; 0: none, -1: learned from arrivals.", int,
)  # fmt: skip
FAST_PATH: Final = Setting(
    "box.fast_path", True, "Answer plain REST inferences without ASGI on paths that already answered.", parse_bool
)


def running_file(process: int) -> Path:
    """Return the file that a server started by hand has in the home folder while it runs."""
    return home_folder() / "run" / "boxes" / f"{process}.json"
