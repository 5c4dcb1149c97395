"""Settings of artifacts by URI."""

from typing import Final

from rdukit.http.addresses import NOT_PUBLIC
from rdukit.settings import Setting

MAX_BYTES: Final = Setting("artifacts.max_bytes", 32 << 30, "Largest artifact in bytes, fetched or uploaded.", int)
MAX_UNPACKED_BYTES: Final = Setting(
    "artifacts.max_unpacked_bytes", 64 << 30, "Largest unpacked size of an archive in bytes.", int
)
MAX_RATIO: Final = Setting(
    "artifacts.max_ratio", 200, "Largest ratio of unpacked to packed bytes of an archive, beyond 256 MiB.", int
)
CACHE_BYTES: Final = Setting(
    "artifacts.cache_bytes",
    100 << 30,
    "Bytes of fetched artifacts that a box keeps; it evicts least recently used ones first.",
    int,
)
ATTEMPTS: Final = Setting(
    "artifacts.attempts", 5, "Number of consecutive cut connections after which a fetch fails.", int
)
TIMEOUT_S: Final = Setting(
    "artifacts.timeout_s", 30.0, "Seconds without a byte after which a connection is cut.", float
)
REFUSED_NETWORKS: Final = Setting(
    "artifacts.refused_networks",
    NOT_PUBLIC,
    "Networks from which http artifacts are never fetched: loopback, private, link-local, multicast and metadata "
    "networks.",
    str,
)
ALLOWED_NETWORKS: Final = Setting(
    "artifacts.allowed_networks", "none",
    "Exceptions to `artifacts.refused_networks`: networks from which http artifacts may be fetched.", str,
)  # fmt: skip
