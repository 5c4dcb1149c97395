"""The exporter's configuration file.

Lines ``key = value`` or ``key: value``; ``#`` begins a comment. Source: runtime reference 6.5 (``http_port``, a missing
file is ignored, one that cannot be read is fatal, each collector can be switched); the other keys are ours.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, PermissionDenied
from rdukit.settings import home_folder, parse_bool, resolve
from rdukit_node.settings import ROOT
from rdukit_node.telemetry.exporter import COLLECTORS

DEFAULT_PORT: Final = 9101
#: The vendor's variable for the file.
FILE_VARIABLE: Final = "SAMBANOVA_EXPORTER_CONFIG_FILE"
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ExporterSettings:
    """Where to listen (0: any free port), and what to export."""

    http_address: str = "127.0.0.1"
    http_port: int = DEFAULT_PORT
    collectors: tuple[str, ...] = COLLECTORS


def default_file() -> Path:
    """The vendor's place under the root prefix, else ``sambanova_exporter.conf`` in the home folder."""
    root = resolve(ROOT)
    if root:
        return Path(root).expanduser().absolute() / "opt/sambaflow/etc/sambanova_exporter.conf"
    return home_folder() / "sambanova_exporter.conf"


def read_settings(file: Path) -> ExporterSettings:
    """The file's settings, or the defaults if there is no such file.

    Raises:
        PermissionDenied: it is there and cannot be read. InvalidArgument: what it says is not legal.
    """
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(_MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return ExporterSettings()
    except (OSError, UnicodeDecodeError) as cause:
        raise PermissionDenied(
            f"the exporter's configuration {file} cannot be read ({cause}); mend it, remove it, or name another with -c"
        ) from cause
    return parse_settings(text, str(file))


def parse_settings(text: str, origin: str) -> ExporterSettings:
    """Settings from the text of a file; ``origin`` is for messages.

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
    """The settings with these collectors on or off."""
    chosen = tuple(name for name in COLLECTORS if switches.get(name, name in settings.collectors))
    return replace(settings, collectors=chosen)


def _with(settings: ExporterSettings, key: str, value: str) -> ExporterSettings:
    if key == "http_port":
        port = int(value) if re.fullmatch(r"\d{1,5}", value) else -1
        if not 0 <= port <= 65535:
            raise ValueError(f"http_port {value!r} is not a port; legal: 0 (any free one) to 65535")
        return replace(settings, http_port=port)
    if key == "http_address":
        return replace(settings, http_address=value)
    name = key.removeprefix("collector_")
    if key.startswith("collector_") and name in COLLECTORS:
        return switch(settings, {name: parse_bool(value)})
    legal = [field.name for field in fields(ExporterSettings)][:2] + [f"collector_{name}" for name in COLLECTORS]
    raise ValueError(f"no setting is called {key!r}; legal: {', '.join(legal)}")
