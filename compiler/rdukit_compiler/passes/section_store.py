"""Section kernels kept from compile to compile, by structure: a second compile of a model, or of a deeper one with the
same layers, differentiates nothing.

The folder is ``$RDUKIT_HOME/sections/<compiler>``, where ``<compiler>`` stands for the versions of torch and of this
package, its source, and the processor. Files are ``rdukit.files.disk_cache``: what is damaged counts as absent and is
written again, and those used longest ago go when the folder exceeds its bound.
"""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from rdukit import __version__
from rdukit.errors import PefCorrupt
from rdukit.files.atomic import sha256_of
from rdukit.files.disk_cache import (
    CachedFile,
    choose_evicted,
    list_cached,
    load_cached,
    remove_cached,
    store_cached,
    sweep_temporary,
)
from rdukit.pef.kernel import kernel_from_json
from rdukit.settings import home_folder, resolve
from rdukit.system.cpu import cpu_signature
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
        content = load_cached(path, time.time())
        if content is None:
            return None
        try:
            return _decoded(json.loads(content))
        except (ValueError, KeyError, TypeError, AttributeError, PefCorrupt) as cause:
            logger.warning("section of the cache is left out: path=%s reason=%s", path, cause)
            return None

    def keep(self, structure: str, kernels: SectionKernels) -> None:
        """Write the kernels of a section, bound to whatever values."""
        content = json.dumps(_encoded(kernels), separators=(",", ":")).encode()
        try:
            store_cached(self._path(structure), content)
        except OSError as cause:
            logger.warning("section was not kept: folder=%s reason=%s", self.folder, cause)
            return
        self._has_grown = True

    def trim(self) -> None:
        """Remove the files used longest ago, of this compiler and of others, until the bound holds."""
        if not self._has_grown:
            return
        self._has_grown = False
        root = self.folder.parent
        sweep_temporary(root, time.time())
        remove_cached(choose_evicted(list_sections(root), self._max_bytes))

    def _path(self, structure: str) -> Path:
        return self.folder / f"{sha256_of(structure.encode())}.json"


def open_section_store() -> SectionStore | None:
    """The installation's store; None if the settings switch it off."""
    max_bytes = resolve(SECTION_CACHE) << 20
    return SectionStore(sections_folder() / compiler_digest(), max_bytes) if max_bytes > 0 else None


def sections_folder() -> Path:
    """Where the sections of all compilers lie, each's in a folder of its own."""
    return home_folder() / "sections"


def list_sections(root: Path) -> list[CachedFile]:
    """Every section file of the store, of this compiler and of others."""
    return list_cached(sorted(root.glob("*/*.json")))


@cache
def compiler_digest() -> str:
    """What a section's kernels depend on beside its structure: versions, source and processor."""
    package = Path(__file__).parent.parent
    sources = sorted([*package.glob("*.py"), *package.glob("passes/*.py"), *package.glob("backend/*.py")])
    parts = [__version__, torch.__version__, cpu_signature(), *(sha256_of(path.read_bytes()) for path in sources)]
    return sha256_of(" ".join(parts).encode())[:16]


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
