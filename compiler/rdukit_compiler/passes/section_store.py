"""Section kernels kept from compile to compile, by structure: a second compile of a model, or of a deeper one with the
same layers, differentiates nothing.

The folder is ``$RDUKIT_HOME/sections/<compiler>``, where ``<compiler>`` stands for the versions of torch and of this
package, its source, and the processor. A file appears atomically and carries the digest of its content: what is
damaged counts as absent and is written again. The oldest files go when the folder exceeds its bound.
"""

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from rdukit import __version__
from rdukit.cpu import cpu_signature
from rdukit.errors import PefCorrupt
from rdukit.files import sha256_of, write_atomic
from rdukit.pef.kernel import kernel_from_json
from rdukit.settings import home_folder, resolve
from rdukit_compiler.passes.differentiate import OperatorShape, SavedValue, SectionKernels, TensorShape
from rdukit_compiler.settings import SECTION_CACHE

logger = logging.getLogger(__name__)


class SectionStore:
    """Files of section kernels in one folder. Failing to read or write one is never an error: it costs time only."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        #: Whether this object has written a file since ``trim``.
        self._has_grown = False

    def find(self, structure: str) -> SectionKernels | None:
        """The kernels of a section of this structure, bound to placeholders; None if there are none."""
        path = self._path(structure)
        try:
            digest, _, content = path.read_bytes().partition(b"\n")
            if digest.decode() != sha256_of(content):
                raise PefCorrupt(f"{path} is damaged")
            found = _decoded(json.loads(content))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, PefCorrupt) as cause:
            logger.warning("section of the cache is left out: path=%s reason=%s", path, cause)
            return None
        try:
            os.utime(path)
        except OSError:  # a folder that only others may write
            logger.debug("section of the cache cannot be marked as used: path=%s", path)
        return found

    def keep(self, structure: str, kernels: SectionKernels) -> None:
        """Write the kernels of a section, bound to whatever values."""
        content = json.dumps(_encoded(kernels), separators=(",", ":")).encode()
        try:
            write_atomic(self._path(structure), sha256_of(content).encode() + b"\n" + content)
        except OSError as cause:
            logger.warning("section was not kept: folder=%s reason=%s", self.folder, cause)
            return
        self._has_grown = True

    def trim(self) -> None:
        """Remove the files used longest ago, of this compiler and of others, until the bound holds."""
        if not self._has_grown:
            return
        self._has_grown = False
        found = []
        for path in self.folder.parent.glob("*/*.json"):
            try:
                status = path.stat()
            except OSError:  # another compile removed it
                continue
            found.append((status.st_mtime_ns, status.st_size, path))
        for path in _too_many(found, self._max_bytes):
            path.unlink(missing_ok=True)

    def _path(self, structure: str) -> Path:
        return self.folder / f"{sha256_of(structure.encode())}.json"


def open_section_store() -> SectionStore | None:
    """The installation's store; None if the settings switch it off."""
    max_bytes = resolve(SECTION_CACHE) << 20
    return SectionStore(home_folder() / "sections" / _compiler_digest(), max_bytes) if max_bytes > 0 else None


@cache
def _compiler_digest() -> str:
    """What a section's kernels depend on beside its structure: versions, source and processor."""
    package = Path(__file__).parent.parent
    sources = sorted([*package.glob("*.py"), *package.glob("passes/*.py"), *package.glob("backend/*.py")])
    parts = [__version__, torch.__version__, cpu_signature(), *(sha256_of(path.read_bytes()) for path in sources)]
    return sha256_of(" ".join(parts).encode())[:16]


def _too_many(files: Iterable[tuple[int, int, Path]], max_bytes: int) -> list[Path]:
    """Which of (time of use, bytes, path) have to go, the oldest first."""
    ordered = sorted(files)
    excess = sum(size for _, size, _ in ordered) - max_bytes
    going = []
    for _, size, path in ordered:
        if excess <= 0:
            break
        going.append(path)
        excess -= size
    return going


def _encoded(kernels: SectionKernels) -> dict[str, Any]:
    """Values are called ``i0``, ``i1`` … and ``o0``, ``o1`` …, as they stand among inputs and outputs."""
    name_of = {name: f"i{position}" for position, name in enumerate(kernels.inputs)}
    name_of |= {name: f"o{position}" for position, name in enumerate(kernels.outputs)}
    return {
        "inputs": [name_of[name] for name in kernels.inputs],
        "outputs": [name_of[name] for name in kernels.outputs],
        "forward": kernels.forward.to_json().decode(),
        "saved": [[name_of.get(s.value or ""), s.index, s.dtype, s.shape] for s in kernels.saved],
        "tangents": [name_of[name] for name in kernels.tangents],
        "gradients": [name_of[name] for name in kernels.gradients],
        "backward": None if kernels.backward is None else kernels.backward.to_json().decode(),
        "forward_work": [[work.op, work.inputs, work.outputs] for work in kernels.forward_work],
        "backward_work": [[work.op, work.inputs, work.outputs] for work in kernels.backward_work],
    }


def _decoded(value: Mapping[str, Any]) -> SectionKernels:
    backward = value["backward"]
    return SectionKernels(
        inputs=tuple(value["inputs"]),
        outputs=tuple(value["outputs"]),
        forward=kernel_from_json(value["forward"].encode()),
        saved=tuple(SavedValue(name, index, dtype, tuple(shape)) for name, index, dtype, shape in value["saved"]),
        tangents=tuple(value["tangents"]),
        gradients=tuple(value["gradients"]),
        backward=None if backward is None else kernel_from_json(backward.encode()),
        forward_work=_work(value["forward_work"]),
        backward_work=_work(value["backward_work"]),
    )


def _work(rows: Sequence[Any]) -> tuple[OperatorShape, ...]:
    return tuple(OperatorShape(op, _shapes(inputs), _shapes(outputs)) for op, inputs, outputs in rows)


def _shapes(rows: Sequence[Any]) -> tuple[TensorShape, ...]:
    return tuple((tuple(shape), dtype) for shape, dtype in rows)
