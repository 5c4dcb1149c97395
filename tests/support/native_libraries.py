"""Sections of tests as native libraries, each compiled once for this compiler and processor, and kept between runs."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from rdukit.system.cpu import cpu_signature
from rdukit_compiler.backend.section_library import compile_sections


def compile_once(codes: Mapping[str, str], definitions: Mapping[str, int]) -> dict[str, bytes]:
    """Return the library of each section, by digest, as ``compile_sections`` does.

    What an earlier run compiled from the same text is taken from the folder that ``scripts/run_tests.py`` keeps for
    this compiler's sources; without such a folder all are compiled.
    """
    home = os.environ.get("RDUKIT_TEST_HOME")
    if not home:
        return compile_sections(codes, definitions)
    said = json.dumps([sorted(codes.items()), sorted(definitions.items()), cpu_signature()]).encode()
    folder = Path(home, "test-libraries", hashlib.sha256(said).hexdigest()[:24])
    if not folder.is_dir():
        part = folder.with_suffix(f".{os.getpid()}")
        part.mkdir(parents=True)
        for digest, library in compile_sections(codes, definitions).items():
            (part / digest).write_bytes(library)
        try:
            part.rename(folder)  # whole or not at all
        except OSError:  # another part was sooner
            assert folder.is_dir()
    return {digest: (folder / digest).read_bytes() for digest in codes}
