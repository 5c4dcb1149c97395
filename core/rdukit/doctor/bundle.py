"""``rdukit doctor --bundle``: collects what support needs to know about an installation in one archive, without
secrets.

The archive holds only listed files, never matches of patterns over the home folder. Settings whose names sound like
secrets appear without values, and words that look like tokens or passwords in URLs are blanked.

Source: ours.
"""

import io
import json
import platform
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from rdukit import __version__
from rdukit.errors import Conflict, InvalidArgument
from rdukit.settings import given_settings, home_folder

#: Bytes that are taken from the end of each log.
_LOG_BYTES: Final = 2 << 20
_COMMAND_S: Final = 30.0
_SECRET_NAME: Final = re.compile(r"(?i)token|secret|password|passwd|credential|(^|[._])key|dsn|lease")
_BLANKED: Final = "(blanked)"
_BLANKS: Final = (
    (re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"), _BLANKED),
    (re.compile(r"(?i)\bauthorization:\s*(?:(?:bearer|basic)\s+)?\S+|\bbearer\s+\S+"), _BLANKED),
    (
        re.compile(r"(?i)((?:token|secret|password|passwd|api[_-]?key)[\"']?\s*[=:]\s*[\"']?)[^\s\"',}]+"),
        rf"\1{_BLANKED}",
    ),
    (re.compile(r"\b(?:rdk|whsec)_[\w+/=-]+"), _BLANKED),
)
#: Commands whose output, which has no secrets, is included.
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "doctor.json": ("doctor", "--json"),
    "status.txt": ("status",),
    "node/status.json": ("node", "status", "--json"),
    "node/events.jsonl": ("node", "events", "--json"),
}
_NODE_TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "node/faults.json": ("-l", "fault", "-a", "--json"),
    "node/errors.json": ("-l", "error", "--json"),
    "node/maintenance.json": ("-l", "maintenance", "--json"),
    "node/op-state.json": ("-l", "op-state", "--json"),
    "node/applications.json": ("-l", "applications", "--json"),
}


def write_bundle(path: Path) -> list[str]:
    """Write the archive; return the names in it.

    Raises:
        Conflict: a file of this name exists. InvalidArgument: the archive cannot be written there.
    """
    entries = {
        "versions.json": json.dumps(_versions(), indent=2), "settings.json": json.dumps(_settings(), indent=2),
        **{name: _ask("rdukit.cli", words) for name, words in COMMANDS.items()},
        **{name: _ask("rdukit_node.cli.snfadm", words) for name, words in _NODE_TOOLS.items()},
        **{f"logs/{log.name}": _end_of(log) for log in sorted((home_folder() / "logs").glob("*.log"))},
    }  # fmt: skip
    try:
        with path.open("xb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in entries.items():
                data = without_secrets(text).encode()
                member = tarfile.TarInfo(f"rdukit-bundle/{name}")
                member.size, member.mtime, member.mode = len(data), int(time.time()), 0o600
                archive.addfile(member, io.BytesIO(data))
        path.chmod(0o600)
    except FileExistsError as cause:
        raise Conflict(f"{path} exists already; name another file") from cause
    except OSError as cause:
        raise InvalidArgument(f"{path} cannot be written: {cause.strerror}") from cause
    return list(entries)


def without_secrets(text: str) -> str:
    """Blank words in ``text`` that look like tokens, passwords and credentials (pure)."""
    for pattern, blank in _BLANKS:
        text = pattern.sub(blank, text)
    return text


def blank_settings(values: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return settings by name, without the values of those whose names sound like secrets (pure)."""
    return {name: _BLANKED if _SECRET_NAME.search(name) and value else value for name, value in values}


def _versions() -> dict[str, object]:
    packages = {each.metadata["Name"]: each.version for each in distributions()}
    return {
        "rdukit": __version__, "python": sys.version, "platform": platform.platform(), "machine": platform.machine(),
        "packages": dict(sorted(packages.items())),
    }  # fmt: skip


def _settings() -> dict[str, str]:
    return blank_settings(given_settings())


def _ask(module: str, words: tuple[str, ...]) -> str:
    program = f"from {module} import main; main()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False, timeout=_COMMAND_S
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no answer within {_COMMAND_S:g} s\n"
    return done.stdout + (f"exit status {done.returncode}\n{done.stderr}" if done.returncode else "")


def _end_of(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_BYTES))
            return file.read().decode(errors="replace")
    except OSError as error:
        return f"it cannot be read: {error}\n"
