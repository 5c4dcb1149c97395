"""Reads the boxes' descriptions once, by running the ModelBox command: the platform imports no box."""

import json
import logging
import subprocess
import threading
from collections.abc import Mapping
from typing import Final

from rdukit.errors import RdukitError, Unavailable
from rdukit_platform.catalog.model import Boxes, read_box
from rdukit_platform.settings import box_command

logger = logging.getLogger(__name__)

LIST_TIMEOUT_S: Final = 60.0


class Catalog:
    """The boxes; the first look runs ``list --json`` and ``describe --json``, later ones are answered from memory."""

    def __init__(self, command: list[str] | None = None) -> None:
        self._command = command
        self._lock = threading.Lock()
        #: None until the command has answered once.
        self._boxes: Boxes | None = None

    def boxes(self) -> Boxes:
        """All boxes.

        Raises:
            Unavailable: the ModelBox command fails; the message carries what it said.
        """
        with self._lock:
            if self._boxes is None:
                self._boxes = read_catalog(self._command or box_command())
            return self._boxes

    def warm_up(self) -> None:
        """Start the first look in the background; a failure is logged and tried again at the next look."""
        threading.Thread(target=self._try_once, name="catalog", daemon=True).start()

    def _try_once(self) -> None:
        try:
            logger.info("catalog read boxes=%s", ",".join(sorted(self.boxes().boxes)))
        except RdukitError as error:
            logger.warning("catalog not read error=%s", error.message)


def read_catalog(command: list[str]) -> Boxes:
    """Run ``command list --json``, and ``describe`` for each box that the list does not describe in full.

    Raises:
        Unavailable: it fails or says something else than JSON.
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
            description = _run(command, "describe", "--box", str(name))
        if not isinstance(description, Mapping):
            raise Unavailable(f"{' '.join(command)} describe gave no JSON object")
        box = read_box(description)
        found[box.name] = box
    return Boxes(found)


def _is_full(verbs: list[object]) -> bool:
    return all(isinstance(verb, Mapping) and "parameters" in verb and "outputs" in verb for verb in verbs)


def _run(command: list[str], *arguments: str) -> object:
    line = [*command, *arguments, "--json"]
    try:
        done = subprocess.run(line, capture_output=True, timeout=LIST_TIMEOUT_S, check=True, stdin=subprocess.DEVNULL)
        return json.loads(done.stdout)
    except subprocess.CalledProcessError as cause:
        said = cause.stderr.decode(errors="replace").strip().splitlines()[-3:]
        raise Unavailable(f"{' '.join(line)} ended with status {cause.returncode}: {' / '.join(said)}") from cause
    except (OSError, subprocess.TimeoutExpired, ValueError) as cause:
        raise Unavailable(f"{' '.join(line)} gave no description: {cause}") from cause
