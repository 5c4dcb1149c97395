"""Descriptions of boxes, read once by running the ModelBox command: the platform imports no box."""

import json
import logging
import secrets
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, RdukitError, Unavailable, error_from_body
from rdukit.files.locks import sole_lock
from rdukit_platform.catalog.fenced_reader import READERS, ReaderEnd, run_reader
from rdukit_platform.catalog.model import Boxes, read_box
from rdukit_platform.settings import box_command

logger = logging.getLogger(__name__)

LIST_TIMEOUT_S: Final = 60.0
BOX_FILE: Final = "modelbox.yaml"
_LOCK: Final = ".lock"


class Catalog:
    """Cache of the boxes' descriptions; the first access runs ``list --json`` and ``describe --json``."""

    def __init__(self, command: list[str] | None = None) -> None:
        self._command = command
        self._lock = threading.Lock()
        #: None until the first answer of the command.
        self._boxes: Boxes | None = None

    def boxes(self) -> Boxes:
        """Return all boxes.

        Raises:
            Unavailable: the ModelBox command fails; the message has its output.
        """
        with self._lock:
            if self._boxes is None:
                self._boxes = read_catalog(self._command or box_command())
            return self._boxes

    def describe_folder(self, folder: Path, tenant_id: str) -> Mapping[str, object]:
        """Describe the box in a tenant's folder, checked. A fenced process reads its YAML; none of its code is
        imported.

        Raises:
            InvalidArgument: it is invalid; the message has every fault with its line. Or reading it exceeds the limits.
            Overloaded: too many are being read already.
            Unavailable: the ModelBox command fails.
        """
        with READERS.one_of(tenant_id):
            return describe_folder(folder, self._command or box_command())

    def check_bundle(self, file: Path, tenant_id: str) -> Mapping[str, object]:
        """Check a tenant's bundle of experts, next to its artifacts, in a fenced process. Returns its description.

        Raises:
            InvalidArgument: it is invalid, or does not fit; the message has every fault with its line. Or reading it
                exceeds the limits.
            Overloaded: too many folders are being read already.
            Unavailable: the ModelBox command fails.
        """
        command = self._command or box_command()
        with READERS.one_of(tenant_id), _plain_refusals(file.parent):
            return _expect_object(_read(command, file.parent, "check-bundle", str(file)), command, "check-bundle")

    def warm_up(self) -> None:
        """Load the boxes in the background; a failure is logged, and the next access tries again."""
        threading.Thread(target=self._try_once, name="catalog", daemon=True).start()

    def _try_once(self) -> None:
        try:
            logger.info("catalog read boxes=%s", ",".join(sorted(self.boxes().boxes)))
        except RdukitError as error:
            logger.warning("catalog not read error=%s", error.message)


def read_catalog(command: list[str]) -> Boxes:
    """Run ``command list --json``, and ``describe`` for each box that the list does not describe in full.

    Raises:
        Unavailable: it fails, or its output is not JSON.
    """
    listed = _run(command, "list")
    if isinstance(listed, Mapping):
        listed = listed.get("boxes", [])
    found = {}
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, Mapping) and isinstance(entry.get("verbs"), list) and _is_full(entry["verbs"]):
            description: object = entry
        else:
            name = entry["name"] if isinstance(entry, Mapping) else entry
            description = _run(command, "describe", str(name))
        if not isinstance(description, Mapping):
            raise Unavailable(f"{' '.join(command)} describe gave no JSON object")
        box = read_box(description)
        found[box.name] = box
    return Boxes(found)


@contextmanager
def incoming_folder(parent: Path) -> Iterator[Path]:
    """Yield a folder below ``parent`` for a box being read. Removes it afterwards, and folders of killed gateways."""
    clear_incoming(parent)
    folder = parent / secrets.token_hex(8)
    with sole_lock(folder.with_suffix(_LOCK)):
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def clear_incoming(parent: Path) -> None:
    """Remove the folders below ``parent`` that no process uses."""
    for lock in parent.glob(f"*{_LOCK}"):
        with sole_lock(lock) as is_left:
            if is_left:
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)


def describe_folder(folder: Path, command: Sequence[str]) -> Mapping[str, object]:
    """Run ``command`` for ``Catalog.describe_folder``."""
    if not (folder / BOX_FILE).is_file():
        there = ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"
        raise InvalidArgument(
            f"a box is a folder with a {BOX_FILE}, but this one has: {there}; create one with: rdukit box new"
        )
    # Not in the folder, because Python would import modules from it.
    with _plain_refusals(folder):
        _read(command, folder, "validate", str(folder))
        return _expect_object(_read(command, folder, "describe", str(folder)), command, "describe")


@contextmanager
def _plain_refusals(folder: Path) -> Iterator[None]:
    """Convert the command's refusals to ``InvalidArgument`` without the folder's path."""
    try:
        yield
    except Unavailable as failed:
        if not isinstance(failed.__cause__, InvalidArgument):
            raise
        text = json.dumps([failed.__cause__.message, failed.__cause__.detail])
        message, detail = json.loads(text.replace(f"{folder}/", "").replace(str(folder), "its folder"))
        raise InvalidArgument(message, **detail) from failed


def _expect_object(said: object, command: Sequence[str], verb: str) -> Mapping[str, object]:
    if not isinstance(said, Mapping):
        raise Unavailable(f"{' '.join(command)} {verb} gave no JSON object")
    return said


def _is_full(verbs: list[object]) -> bool:
    return all(isinstance(verb, Mapping) and "parameters" in verb and "outputs" in verb for verb in verbs)


def _run(command: Sequence[str], *arguments: str) -> object:
    """Run a command that reads no files of tenants."""
    line = [*command, *arguments, "--json"]
    try:
        done = subprocess.run(line, capture_output=True, timeout=LIST_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise Unavailable(f"{' '.join(line)} gave no description: {cause}") from cause
    return _value_of(line, ReaderEnd(done.returncode, done.stdout, done.stderr.decode(errors="replace")))


def _read(command: Sequence[str], folder: Path, *arguments: str) -> object:
    """Run a command that reads a tenant's folder."""
    line = [*command, *arguments, "--json"]
    return _value_of(line, run_reader(line, folder))


def _value_of(line: Sequence[str], end: ReaderEnd) -> object:
    if end.status:
        message = f"{' '.join(line)} ended with status {end.status}: {' / '.join(end.words.strip().splitlines()[-3:])}"
        # The command's own error is the more precise cause.
        raise Unavailable(message) from _find_error(end.answer)
    try:
        return json.loads(end.answer)
    except ValueError as cause:
        raise Unavailable(f"{' '.join(line)} gave no description: {cause}") from cause


def _find_error(output: bytes) -> RdukitError | None:
    """Return the error that the command printed as JSON, if its request was invalid."""
    try:
        error = error_from_body(json.loads(output), RdukitError)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return error if isinstance(error, InvalidArgument) else None
