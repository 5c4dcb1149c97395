"""Section libraries: the C++ of many kernels compiled together, then linked into one small library for each.

Reading torch's headers takes the C++ compiler seconds, a section's own code a fraction of one, so a batch of kernels
shares one reading. The linker takes from the common object what one kernel needs.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rdukit.errors import CompileError
from rdukit.files.atomic import sha256_of
from rdukit.pef.file import LIST_RUNNER, section_symbol
from rdukit.settings import SANITIZE, resolve
from rdukit_compiler.backend.section_code import library_source

SOURCES: Final = Path(__file__).parent / "native_source"

#: What the code of a section calls; in a running program they are loaded already.
_TORCH_LIBRARIES: Final = ("libtorch_cpu.so", "libc10.so")

#: Each function may be left out by the linker; warnings are about code that inductor wrote.
_OBJECT_FLAGS: Final = ("-ffunction-sections", "-fdata-sections", "-w", f"-I{SOURCES}")
_NOT_WANTED: Final = ("-Wall", "-pedantic", "-fno-omit-frame-pointer")
#: Reads and writes outside of tensors, and what C++ leaves undefined, end the program with the place. Vectors are read
#: from wherever their first number lies.
_SANITIZERS: Final = ("-fsanitize=address,undefined", "-fno-sanitize=alignment,vptr", "-fno-sanitize-recover=all")
_SANITIZED_FLAGS: Final = (*_SANITIZERS, "-O1", "-g1", "-fno-omit-frame-pointer")


def sources_digest() -> str:
    """Changes with our own C++: libraries built from other sources are not used."""
    return sha256_of(b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir())))[:12]


def compiler_environment() -> dict[str, str]:
    """The environment of processes that build: a sanitizer that watches this one is not to watch the C++ compiler."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD" or not resolve(SANITIZE)}


def compile_sections(
    sections: Mapping[str, str], definitions: Mapping[str, int], scratch: Path | None = None
) -> dict[str, bytes]:
    """One library for each section.

    Args:
        sections: by kernel digest what ``section_namespace`` wrote for the name ``section``.
        definitions: macros for our own C++ and their values: ``Routes.definitions`` of the routes that they go.
        scratch: where to work; None takes the system's folder for temporary files.
    Raises:
        CompileError: the C++ compiler refused; with its first error.
    """
    from rdukit_compiler.backend.torch_private import compile_command

    with tempfile.TemporaryDirectory(prefix="rdukit-sections-", dir=scratch) as folder:
        source, made = Path(folder, "sections.cpp"), Path(folder, "sections.o")
        codes = {section_symbol(digest): code for digest, code in sections.items()}
        source.write_text(library_source(codes, definitions))
        command = [word for word in compile_command(source, made) if word not in _NOT_WANTED]
        _run([*command, *_OBJECT_FLAGS, *(_SANITIZED_FLAGS if resolve(SANITIZE) else ())])
        _make_stubs(Path(folder), command[0])
        return {digest: _link(made, section_symbol(digest), command[0]) for digest in sections}


def _make_stubs(folder: Path, compiler: str) -> None:
    """Empty libraries with the names of torch's: the linker notes the names, and need not read 400 MB each time."""
    empty = folder / "empty.c"
    empty.write_text("")
    for name in _TORCH_LIBRARIES:
        _run([compiler, "-shared", "-fPIC", str(empty), "-o", str(folder / name), f"-Wl,-soname,{name}"])


def _link(made: Path, symbol: str, compiler: str) -> bytes:
    """The library that exports ``symbol`` and the list runner, and holds what these need."""
    exported, library = made.with_suffix(".map"), made.with_suffix(".so")
    exported.write_text(f"{{ global: {symbol}; {LIST_RUNNER}; local: *; }};\n")
    _run(
        [
            compiler, "-shared", str(made), "-o", str(library), f"-Wl,--version-script={exported}",
            *(_SANITIZERS if resolve(SANITIZE) else ("-Wl,--strip-all",)),
            "-Wl,--gc-sections", "-fopenmp", "-Wl,--no-as-needed",
            *(str(made.parent / name) for name in _TORCH_LIBRARIES),
        ]
    )  # fmt: skip
    return library.read_bytes()


def _run(command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        raise CompileError(f"the C++ compiler {command[0]!r} was not found")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=compiler_environment())
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["?"]
        raise CompileError(f"the C++ compiler failed with status {done.returncode}: {lines[0]}")
