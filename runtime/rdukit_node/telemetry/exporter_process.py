"""The exporter's process: reads its configuration file, asks the node at each scrape, answers Prometheus over HTTP.

The file has lines ``key = value`` or ``key: value``; ``#`` begins a comment.

Source: runtime reference 6.5 (``http_port``, missing files ignored, unreadable ones fatal, collectors switchable); the
other keys are ours.
"""

import errno
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rdukit.errors import Conflict, InvalidArgument, PermissionDenied, RdukitError
from rdukit.interfaces import Clock
from rdukit.settings import home_folder, parse_bool, resolve
from rdukit.snd import SndClient
from rdukit_node.settings import ROOT
from rdukit_node.telemetry.exporter import COLLECTORS, METRICS, Observed, Sample, node_samples
from rdukit_node.telemetry.sampling import Reading, take_reading

DEFAULT_PORT: Final = 9101
#: The vendor's variable for the file.
FILE_VARIABLE: Final = "SAMBANOVA_EXPORTER_CONFIG_FILE"
_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ExporterSettings:
    """Address to listen on (port 0: any free one), and collectors to export."""

    http_address: str = "127.0.0.1"
    http_port: int = DEFAULT_PORT
    collectors: tuple[str, ...] = COLLECTORS


def default_file() -> Path:
    """Return the vendor's place under the root prefix, else ``sambanova_exporter.conf`` in the home folder."""
    root = resolve(ROOT)
    if root:
        return Path(root).expanduser().absolute() / "opt/sambaflow/etc/sambanova_exporter.conf"
    return home_folder() / "sambanova_exporter.conf"


def read_settings(file: Path) -> ExporterSettings:
    """Return the file's settings, or the defaults if there is no such file.

    Raises:
        PermissionDenied: the file cannot be read. InvalidArgument: its content is not valid.
    """
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return ExporterSettings()
    except (OSError, UnicodeDecodeError) as cause:
        raise PermissionDenied(
            f"the exporter's configuration {file} cannot be read ({cause}); correct it, remove it, or name another "
            "with -c"
        ) from cause
    return parse_settings(text, str(file))


def parse_settings(text: str, origin: str) -> ExporterSettings:
    """Parse the settings in the text of a file; ``origin`` is for messages.

    Raises:
        InvalidArgument: an unknown key or an illegal value; the message names the line and what would be legal.
    """
    settings = ExporterSettings()
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content or re.fullmatch(r"\[\w+\]", content):  # headings group lines for people
            continue
        match = re.fullmatch(r"(\w+)\s*[=:]\s*(.*)", content)
        if match is None:
            raise InvalidArgument(f"{origin}, line {number}: {content!r} is not of the form key = value")
        try:
            settings = _with(settings, match[1].lower(), match[2].strip().strip("\"'"))
        except ValueError as cause:
            raise InvalidArgument(f"{origin}, line {number}: {cause}") from cause
    return settings


def switch(settings: ExporterSettings, switches: Mapping[str, bool]) -> ExporterSettings:
    """Return the settings with these collectors on or off."""
    chosen = tuple(name for name in COLLECTORS if switches.get(name, name in settings.collectors))
    return replace(settings, collectors=chosen)


def _with(settings: ExporterSettings, key: str, value: str) -> ExporterSettings:
    if key == "http_port":
        port = int(value) if re.fullmatch(r"\d{1,5}", value) else -1
        if not 0 <= port <= 65535:
            raise ValueError(f"http_port {value!r} is not a port; expected 0 (any free port) to 65535")
        return replace(settings, http_port=port)
    if key == "http_address":
        return replace(settings, http_address=value)
    name = key.removeprefix("collector_")
    if key.startswith("collector_") and name in COLLECTORS:
        return switch(settings, {name: parse_bool(value)})
    legal = [field.name for field in fields(ExporterSettings)][:2] + [f"collector_{name}" for name in COLLECTORS]
    raise ValueError(f"unknown setting {key!r}; expected {', '.join(legal)}")


logger = logging.getLogger(__name__)

#: Percentages refer to the time since a reading of an age in this range; else to ``_FIRST_WINDOW_S``.
_MIN_AGE_NS: Final = 1_000_000_000
_MAX_AGE_NS: Final = 300_000_000_000
_FIRST_WINDOW_S: Final = 0.25
_PAGE: Final = 1000


class NodeCollector(Collector):
    """Asks one node. Keeps its connection, and the latest readings to compare with; used by several threads."""

    def __init__(self, connect: Callable[[], SndClient], clock: Clock, collectors: Sequence[str] = COLLECTORS) -> None:
        self._connect = connect
        self._clock = clock
        self._collectors = tuple(collectors)
        self._lock = threading.Lock()
        self._client: SndClient | None = None
        #: Readings of the present connection, oldest first, at least ``_MIN_AGE_NS`` apart, so that a second scraper
        #: soon after the first still has a meaningful window.
        self._readings: deque[Reading] = deque(maxlen=3)

    def collect(self) -> Iterator[Metric]:
        """Families of the metrics that have samples."""
        with self._lock:
            samples = node_samples(self._observe(), self._collectors)
        yield from families(samples)

    def describe(self) -> list[Metric]:
        """Return no descriptions: registering must not query the node."""
        return []

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            self._hang_up()

    def _observe(self) -> Observed | None:
        for _ in range(2):  # a daemon that was started again is reached by a new connection
            is_new = self._client is None
            try:
                client = self._client = self._client or self._connect()
                return self._ask(client)
            except RdukitError as error:
                self._hang_up()
                if is_new:
                    logger.info("event=node-down error=%s", error)
                    return None
        return None

    def _ask(self, client: SndClient) -> Observed:
        after = take_reading(client)
        before = find_baseline(self._readings, after)
        if before is None:
            self._clock.sleep(_FIRST_WINDOW_S)
            before, after = after, take_reading(client)
        if not self._readings or not 0 <= after.time_ns - self._readings[-1].time_ns < _MIN_AGE_NS:
            self._readings.append(after)
        if "platform" not in self._collectors:
            return Observed(before, after)
        return Observed(
            before, after, _all_rows(client, "faults", "fault_uuid"), _all_rows(client, "errors", "err_uuid")
        )

    def _hang_up(self) -> None:
        self._readings.clear()
        if self._client is not None:
            self._client.close()
            self._client = None


def find_baseline(readings: Sequence[Reading], after: Reading) -> Reading | None:
    """Return the newest reading whose age suits a comparison with ``after``; ``None``: there is none."""
    for reading in reversed(readings):
        age = after.time_ns - reading.time_ns
        if _MIN_AGE_NS <= age <= _MAX_AGE_NS:
            return reading
    return None


def families(samples: Sequence[Sample]) -> list[Metric]:
    """Prometheus' form of samples, in the order of ``METRICS``."""
    made: dict[str, Metric] = {}
    for name, metric in METRICS.items():
        mine = [sample for sample in samples if sample.metric == name]
        if not mine:
            continue
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(name, metric.help, labels=metric.labels)
        for sample in mine:
            family.add_metric(sample.labels, sample.value)
        made[name] = family
    return list(made.values())


def serve(settings: ExporterSettings, collector: NodeCollector) -> WSGIServer:
    """Begin to serve ``/metrics``, in threads. The caller shuts the server down.

    Raises:
        Conflict: somebody listens there already. InvalidArgument: the address cannot be used.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, _ = start_http_server(settings.http_port, settings.http_address, registry)
    except OSError as cause:
        where = f"{settings.http_address}:{settings.http_port}"
        words = (
            f"the exporter cannot listen on {where} ({cause.strerror or cause}); name another with --port or http_port"
        )
        raise (Conflict if cause.errno == errno.EADDRINUSE else InvalidArgument)(words) from cause
    return server


def _all_rows(client: SndClient, op: str, key: str) -> list[Mapping[str, Any]]:
    """Fetch all rows of an operation that answers in pages."""
    rows: list[Mapping[str, Any]] = []
    more: dict[str, object] = {}
    while True:
        answer = client.call(op, limit=_PAGE, **more)
        rows += answer[op]
        if not answer["more"] or not answer[op]:
            return rows
        more = {"after": answer[op][-1][key]}
