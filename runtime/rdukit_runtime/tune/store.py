"""Results of ``rdukit tune`` that later studies reuse: compiled points by program, measurements by what runs.

They lie in the home folder. Each result is written at once, so an interrupted study continues. A damaged file counts as
empty.

Source: ours.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from rdukit import __version__
from rdukit.files.atomic import write_atomic
from rdukit.files.locks import sole_lock
from rdukit.pef.model import Pef
from rdukit.settings import KERNELS, home_folder, resolve
from rdukit.system.cpu import cpu_signature
from rdukit_runtime.sambatune.config import TuneConfig

logger = logging.getLogger(__name__)

#: Version of the files; it changes with the meaning of a field.
SCHEMA: Final = 1
#: Most results of a file; the oldest are dropped.
_MOST_RESULTS: Final = 5000
#: Longest wait in seconds for another study that writes its result.
_LOCK_S: Final = 5.0
#: Program files that a study's context holds, and bytes of each.
_MOST_FILES: Final = 500
_MOST_BYTES: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class CompiledPoint:
    """Facts of a compiled point. ``error``: why it failed; then the other fields are empty.

    ``predicted_s`` is a step by this machine's limits, ``projected_s`` one of the emulated chip.
    """

    digest: str = ""
    batch: int = 0
    predicted_s: float = 0.0
    projected_s: float = 0.0
    error: str = ""


@dataclass(slots=True)
class ResultFile:
    """Results by key in a JSON file, written at each change. Entries of others stay, but are not visible here."""

    path: Path
    results: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "ResultFile":
        """Read the file; a missing or damaged one is empty."""
        try:
            value = json.loads(path.read_bytes())
            results = value["results"] if value["schema"] == SCHEMA else {}
            return cls(path, dict(results))
        except FileNotFoundError:
            return cls(path)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as cause:
            logger.warning("tune results not used file=%s reason=%r", path, cause)
            return cls(path)

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Keep a result, as the latest."""
        self.results.pop(key, None)
        self.results[key] = dict(value)
        with sole_lock(self.path.with_name(f"{self.path.name}.lock"), _LOCK_S):
            others = {name: kept for name, kept in ResultFile.read(self.path).results.items() if name != key}
            kept = dict([*others.items(), (key, dict(value))][-_MOST_RESULTS:])
            write_atomic(self.path, json.dumps({"schema": SCHEMA, "results": kept}).encode())  # in order

    def find_point(self, key: str) -> CompiledPoint | None:
        """Return a compiled point; None: not stored, or damaged."""
        try:
            found = CompiledPoint(**self.results[key])
            is_whole = bool(found.error) or (found.batch > 0 and found.predicted_s > 0 and found.projected_s > 0)
        except (KeyError, TypeError):
            return None
        return found if is_whole else None

    def put_point(self, key: str, point: CompiledPoint) -> None:
        """Keep a compiled point."""
        self.put(key, asdict(point))

    def find_seconds(self, key: str) -> float | None:
        """Return the measured seconds of a step; None: not stored, or damaged."""
        try:
            seconds = float(self.results[key]["step_s"])
        except (KeyError, TypeError, ValueError):
            return None
        return seconds if 0 < seconds < float("inf") else None

    def find_ratio(self, key: str) -> dict[str, Any] | None:
        """Return a stored comparison; None: not stored, or damaged."""
        found = self.results.get(key)
        if not isinstance(found, dict) or not isinstance(found.get("high"), float | None):
            return None
        is_whole = all(isinstance(found.get(name), float) and found[name] > 0 for name in ("ratio", "low"))
        return dict(found) if is_whole else None


def points_file(config: TuneConfig) -> Path:
    """Return the file of a program's compiled points: another one when the program, its arguments or rdukit change.

    The program is all Python files of its folder, and all files that its arguments name.
    """
    found = hashlib.sha256()
    about = [__version__, torch.__version__, cpu_signature(), config.app, config.model_args, config.compile_args,
             sorted(config.env.items()), forms_of(config)]  # fmt: skip
    found.update(json.dumps(about).encode())
    words = [word.split("=", 1)[-1] for word in (*config.model_args, *config.compile_args)]
    named = [path for word in words if (path := Path(word)).is_file()]
    beside = [path for path in sorted(Path(config.app).parent.glob("*.py")) if path.is_file()]  # no editor's dead link
    for path in [*beside[:_MOST_FILES], *named]:
        with path.open("rb") as stream:
            found.update(path.name.encode() + b"\0" + stream.read(_MOST_BYTES))
    return home_folder() / "tune" / f"points-{found.hexdigest()[:16]}.json"


def forms_of(config: TuneConfig) -> str:
    """Return the form in which a program's sections run: ``portable`` if the setting ``kernels`` says so."""
    return "portable" if resolve(KERNELS, environ={**os.environ, **config.env}) == "portable" else "native"


def measured_file() -> Path:
    """Return the file of this machine's measurements; it changes with rdukit, whose kernels are measured."""
    return home_folder() / "tune" / f"measured-{__version__}-{cpu_signature()}-{torch.__version__}.json"


def digest_of(pef: Pef) -> str:
    """Return the digest of the executed parts: kernels, their order, and tensors; not names, costs or tiles."""
    symbols = {name: (s.kind.value, s.dtype, list(s.shape), s.region) for name, s in sorted(pef.symbols.items())}
    sections = [(s.type.value, s.kernel, s.inputs, s.outputs) for s in pef.sections]
    graphs = [(name, graph.schedule) for name, graph in sorted(pef.graphs.items())]
    return hashlib.sha256(json.dumps([symbols, sections, graphs]).encode()).hexdigest()[:32]
