"""Settings of artifacts by URI."""

from typing import Final

from rdukit.http.addresses import NOT_PUBLIC
from rdukit.settings import Setting

MAX_BYTES: Final = Setting("artifacts.max_bytes", 32 << 30, "Most bytes of one artifact, fetched or uploaded.", int)
MAX_UNPACKED_BYTES: Final = Setting(
    "artifacts.max_unpacked_bytes", 64 << 30, "Most bytes that one archive may unpack to.", int
)
MAX_RATIO: Final = Setting(
    "artifacts.max_ratio", 200, "Most bytes per byte of an archive, once it has unpacked to 256 MiB.", int
)
CACHE_BYTES: Final = Setting(
    "artifacts.cache_bytes", 100 << 30, "Bytes of fetched artifacts that a box keeps; the longest unused go first.", int
)
ATTEMPTS: Final = Setting("artifacts.attempts", 5, "Connections that may be cut in a row before a fetch fails.", int)
TIMEOUT_S: Final = Setting(
    "artifacts.timeout_s", 30.0, "Seconds without a byte after which a connection is cut.", float
)
REFUSED_NETWORKS: Final = Setting(
    "artifacts.refused_networks",
    NOT_PUBLIC,
    "Networks that http artifacts are never fetched from: loopback, private, link-local, multicast and metadata ones.",
    str,
)
ALLOWED_NETWORKS: Final = Setting(
    "artifacts.allowed_networks", "none",
    "Networks that http artifacts are fetched from although `artifacts.refused_networks` has them.", str,
)  # fmt: skip
