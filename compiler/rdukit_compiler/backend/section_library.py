"""Section libraries: inductor's C++ of many kernels compiled together, then linked into one small library for each.

Inductor's wrapper is a whole library with a model container, constants and an interface of thirty functions; it takes
several seconds to compile, whatever the graph. A section needs only its body, which calls kernels and operators.
``section_namespace`` extracts the body's text. It expects the forms of the pinned torch and refuses any other; such a
section runs portably.

Reading torch's headers takes the C++ compiler seconds, a section's own code a fraction of one, so a batch of kernels
shares one reading. From the common object, the linker takes the code of one kernel.
"""

import os
import re
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
from rdukit_compiler.torch_private import compile_command

SOURCES: Final = Path(__file__).parent / "native_source"

#: Libraries that a section's code calls; a running program has loaded them already.
_TORCH_LIBRARIES: Final = ("libtorch_cpu.so", "libc10.so")

#: Compiler flags. The linker may leave out each function; warnings would concern inductor's code. Inductor's flags
#: treat -0 as 0 and leave integer overflow undefined (pytorch issue 190764); two of these undo that.
_OBJECT_FLAGS: Final = ("-ffunction-sections", "-fdata-sections", "-w", "-fsigned-zeros", "-fwrapv", f"-I{SOURCES}")
_NOT_WANTED: Final = ("-Wall", "-pedantic", "-fno-omit-frame-pointer")
#: Sanitizer flags: accesses outside tensors, and undefined behaviour, end the program and report the source line.
#: Unaligned reads of vectors are allowed.
_SANITIZERS: Final = ("-fsanitize=address,undefined", "-fno-sanitize=alignment,vptr", "-fno-sanitize-recover=all")
_SANITIZED_FLAGS: Final = (*_SANITIZERS, "-O1", "-g1", "-fno-omit-frame-pointer")

_BODY: Final = re.compile(
    r"void AOTInductorModel::run_impl\(.*?\) \{\n(?P<body>.*)\n\} // AOTInductorModel::run_impl", re.DOTALL
)
#: Cached constants of torch's C interface, one a line.
_CACHED: Final = re.compile(r"^CACHE_TORCH_\w+\(\w+\);$", re.MULTILINE)
#: Lines that only the container's class needs.
_DROPPED: Final = re.compile(
    r"^\s*(__check_inputs_outputs\(.*\);|if \(_check_aoti_runtime_check_inputs_env\(\)\) \{.*\}"
    r"|\[\[maybe_unused\]\] auto& kernels = .*;|inputs\.clear\(\);)\s*$\n?",
    re.MULTILINE,
)
#: Names whose use in a body needs parts that a section lacks.
_FOREIGN: Final = ("proxy_executor", "constants_", "this->", "kernels.", "stream")
#: Inductor's form of an operator call.
_CALLED: Final = re.compile(r'"torch\.ops\.(\w+\.\w+\.\w+)"')
#: Prefix of the reason for a missing library that is not a failure.
NO_FORM: Final = "no native form of "
#: Prefix of calls of our own operators → the header that declares them.
_OUR_CODE: Final[Mapping[str, str]] = {
    "aoti_torch_cpu_rdukit_product": "products",
    "aoti_torch_cpu_rdukit_batch_product": "products",
    "aoti_torch_cpu_rdukit_packed_": "packed_linear",
    "aoti_torch_cpu_rdukit_int8_linear": "int8_linear",
    "aoti_torch_cpu_rdukit_int4_linear": "int4_linear",
    "aoti_torch_cpu_rdukit_attention": "attention",
    "aoti_torch_cpu_rdukit_small_convolution": "small_convolution",
    "aoti_torch_cpu_rdukit_convolution": "convolution",
    "aoti_torch_cpu_lstm_layer": "lstm",
}
_EXTERNAL_KERNEL: Final = re.compile(r'extern "C"\s+void\s+(?=\w*\()')
#: Inductor splits loops for all threads of the machine; a lease may have fewer.
_THREADS: Final = re.compile(r"num_threads\((\d+)\)")
#: Calls of torch's whose order of additions depends on the threads, and ours (``section.h``).
_UNORDERED: Final = ("aoti_torch_index_put_out(", "rdukit::index_put_in_order(")
#: Scatter calls, whose status inductor drops: an index out of range would go unnoticed.
_UNCHECKED: Final = re.compile(r"^(\s*)((?:aoti_torch|rdukit::)\w+\(.*\));$", re.MULTILINE)
#: Inductor's call that rounds floats to bf16, and ours (``section.h``).
_NARROWING: Final = ("at::vec::convert<at::BFloat16,1,float,2>(", "rdukit::narrow_lanes(")


def sources_digest() -> str:
    """Digest our own C++: libraries that were built from other sources are not used."""
    return sha256_of(b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir())))[:12]


def compiler_environment() -> dict[str, str]:
    """Return the environment of processes that build: a sanitizer of this process must not watch the C++ compiler."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD" or not resolve(SANITIZE)}


def compile_sections(
    sections: Mapping[str, str], definitions: Mapping[str, int], scratch: Path | None = None
) -> dict[str, bytes]:
    """Compile one library for each section.

    Args:
        sections: kernel digest → code that ``section_namespace`` wrote for the name ``section``.
        definitions: macros for our own C++ and their values: ``Routes.definitions`` of the chosen routes.
        scratch: where to work; None takes the system's folder for temporary files.
    Raises:
        CompileError: the C++ compiler failed; the message has its first error.
    """
    with tempfile.TemporaryDirectory(prefix="rdukit-sections-", dir=scratch) as folder:
        source, made = Path(folder, "sections.cpp"), Path(folder, "sections.o")
        codes = {section_symbol(digest): code for digest, code in sections.items()}
        source.write_text(library_source(codes, definitions))
        command = [word for word in compile_command(source, made) if word not in _NOT_WANTED]
        _run([*command, *_OBJECT_FLAGS, *(_SANITIZED_FLAGS if resolve(SANITIZE) else ())])
        _make_stubs(Path(folder), command[0])
        return {digest: _link(made, section_symbol(digest), command[0]) for digest in sections}


def _make_stubs(folder: Path, compiler: str) -> None:
    """Write empty libraries with the names of torch's: the linker need not read 400 MB each time."""
    empty = folder / "empty.c"
    empty.write_text("")
    for name in _TORCH_LIBRARIES:
        _run([compiler, "-shared", "-fPIC", str(empty), "-o", str(folder / name), f"-Wl,-soname,{name}"])


def _link(made: Path, symbol: str, compiler: str) -> bytes:
    """Link the library that exports ``symbol`` and the list runner, with the code that these need."""
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


class UnusualCode(ValueError):
    """Inductor wrote code that cannot be a section; the kernel runs portably, with the same results. Names the
    operators.
    """


def section_namespace(name: str, wrapper: str, kernels: str) -> str:
    """Return the code of one section as ``namespace name``, whose function ``run`` takes inputs and outputs.

    Args:
        wrapper: inductor's wrapper. kernels: inductor's kernels.
    Raises:
        UnusualCode: the wrapper has another form than expected, or needs more than tensors.
    """
    found = _BODY.search(wrapper)
    if found is None:
        raise UnusualCode("what inductor writes without run_impl")
    body = _DROPPED.sub("", found["body"]).replace("this->device_idx_", "0").replace(*_UNORDERED)
    body = _UNCHECKED.sub(r"\1AOTI_TORCH_ERROR_CODE_CHECK(\2);", body)
    foreign = next((word for word in _FOREIGN if word in body), None)
    if foreign is not None:
        called = dict.fromkeys(_CALLED.findall(body)) if foreign == _FOREIGN[0] else {}
        raise UnusualCode(", ".join(called) or f"what inductor writes with {foreign!r}")
    own = "\n".join(line for line in kernels.splitlines() if not line.startswith("#include"))
    own = _EXTERNAL_KERNEL.sub("static void ", own)
    own = _THREADS.sub(r"num_threads(rdukit::threads_up_to(\1))", own)
    own = own.replace(*_NARROWING)
    cached = "\n".join(_CACHED.findall(wrapper))
    return (
        f"namespace {name} {{\n{cached}\n{own}\n"
        "static void run(AtenTensorHandle* input_handles, AtenTensorHandle* output_handles) {\n"
        f"{body}\n}}\n}}  // namespace {name}\n"
    )


def library_source(sections: Mapping[str, str], definitions: Mapping[str, int]) -> str:
    """Return a translation unit of several sections: exported function → the section's code.

    ``definitions``: macros of our own operators' code, and their values.
    """
    parts = ['#include "section.h"']
    headers = dict.fromkeys(
        header for call, header in _OUR_CODE.items() if any(call in code for code in sections.values())
    )
    parts += [f"#define {name} {number}" for name, number in definitions.items() if headers]
    parts += [f'#include "{header}.h"' for header in headers]
    for number, (symbol, code) in enumerate(sections.items()):
        parts += [code.replace("namespace section ", f"namespace section{number} ", 1)]
        parts += [f"RDUKIT_SECTION({symbol}, section{number}::run)"]
    return "\n".join(parts) + "\n"


def find_cpp_compiler() -> str | None:
    """Return the path of the C++ compiler that torch would use, or None."""
    return shutil.which(os.environ.get("CXX") or "g++")
