"""Sections of tests as native libraries, each compiled once for this compiler and processor, and kept between runs."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from rdukit.system.cpu import cpu_signature
from rdukit_compiler.backend.section_library import compile_sections

#: Sections of one run of the C++ compiler, at most: reading torch's headers takes as long as some ten of them, and
#: each keeps memory until the run's end.
BATCH_SECTIONS: Final = 40


def keep(
    origins: Mapping[str, str], definitions: Mapping[str, int], write: Callable[[str], str]
) -> dict[str, bytes]:  # fmt: skip
    """Return a library for each digest.

    What an earlier run compiled comes from the folder that ``scripts/run_tests.py`` keeps for this compiler's sources;
    without such a folder all are compiled.

    Args:
        origins: by digest, all that its code follows from besides the compiler's sources.
        write: writes the code of a digest.
    """
    home = os.environ.get("RDUKIT_TEST_HOME")
    if not home:
        libraries: dict[str, bytes] = {}
        for batch in _batches(list(origins)):
            libraries |= compile_sections({digest: write(digest) for digest in batch}, definitions)
        return libraries
    folder = Path(home, "test-libraries")
    folder.mkdir(parents=True, exist_ok=True)
    files = {digest: folder / f"{_key(digest, origin, definitions)}.so" for digest, origin in origins.items()}
    for batch in _batches([digest for digest, file in files.items() if not file.exists()]):
        for digest, library in compile_sections({digest: write(digest) for digest in batch}, definitions).items():
            part = files[digest].with_suffix(f".{os.getpid()}")
            part.write_bytes(library)
            part.replace(files[digest])  # whole or not at all
    return {digest: file.read_bytes() for digest, file in files.items()}


def chosen_values(request: pytest.FixtureRequest, *names: str) -> set[tuple[Any, ...]]:
    """Return the values of these parameters in the cases of the module that run: others need no kernels.

    Args:
        request: of a fixture of the module.
    """
    parameters = [
        item.callspec.params
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path and hasattr(item, "callspec")
    ]
    return {tuple(given[name] for name in names) for given in parameters if given.keys() >= set(names)}


def _key(digest: str, origin: str, definitions: Mapping[str, int]) -> str:
    said = json.dumps([digest, origin, sorted(definitions.items()), cpu_signature()]).encode()
    return hashlib.sha256(said).hexdigest()[:32]


def _batches(digests: Sequence[str]) -> Iterable[Sequence[str]]:
    return (digests[start : start + BATCH_SECTIONS] for start in range(0, len(digests), BATCH_SECTIONS))
