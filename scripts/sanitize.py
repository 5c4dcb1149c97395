"""Run tests, or any command, with native kernels under AddressSanitizer and UBSan.

``scripts/sanitize.py`` runs the tests that use native kernels and random modules, with ``--short`` fewer of both; with
paths and options of pytest those tests, and ``scripts/sanitize.py -- python program.py …`` a program. What a kernel
reads or writes outside of its tensors ends the process with the place in the generated C++. Kernels are built anew,
without optimisation, beside the usual ones. torch itself is not sanitized, only its memory is watched.

Exit status 3: this machine's C++ compiler has no sanitizers; with ``--short``, 0, and it says so.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

#: Tests whose kernels are native: of our own operators, and of what inductor writes.
SHORT = ["tests/conformance/test_sanitized_kernels.py", "tests/conformance/test_native_lookups.py"]
LONG = [
    *SHORT, "tests/conformance/test_native_sections.py", "tests/conformance/test_native_products.py",
    "tests/conformance/test_few_row_products.py", "tests/conformance/test_native_convolutions.py",
    "tests/conformance/test_small_convolutions.py", "tests/conformance/test_lstm_layer.py",
]  # fmt: skip
#: Random modules that are run, with ``--short`` and without: as many as make whole groups of kernels.
FEW, MANY = 16, 96
NO_SANITIZER = 3
#: torch frees at exit what it will, and catches its own exceptions.
ASAN = "detect_leaks=0:detect_odr_violation=0:alloc_dealloc_mismatch=0:handle_segv=1:abort_on_error=0"
UBSAN = "print_stacktrace=1:halt_on_error=1"


def compiler() -> str:
    """Return the C++ compiler that builds kernels."""
    return os.environ.get("CXX") or "g++"


def find_library(name: str) -> str | None:
    """Return the path of one of the compiler's libraries; None if it lacks the library."""
    try:
        command = [compiler(), f"-print-file-name={name}"]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return None
    return str(Path(found).resolve()) if os.path.isabs(found) and Path(found).exists() else None


def why_impossible() -> str | None:
    """Return what this machine lacks, as a sentence; None if it has everything."""
    for name in ("libasan.so", "libubsan.so"):
        if find_library(name) is None:
            return (
                f"{compiler()} has no {name}: nothing is sanitized. On Debian and Ubuntu it comes with the compiler "
                "(apt-get install g++); with another compiler set CXX"
            )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "empty.cpp")
        source.write_text("int f(int a) { return a + 1; }\n")
        command = [
            compiler(),
            "-fsanitize=address,undefined",
            "-shared",
            "-fPIC",
            str(source),
            "-o",
            f"{folder}/empty.so",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"{compiler()} builds nothing with sanitizers: {done.stderr.strip()}"


def environment() -> dict[str, str]:
    """Return the environment in which kernels are sanitized."""
    # The C++ library first, too: the sanitizer looks for its exceptions when it is loaded.
    libraries = [find_library("libasan.so"), find_library("libubsan.so"), find_library("libstdc++.so.6")]
    return {
        "OMP_NUM_THREADS": "2", **os.environ,
        "RDUKIT_SANITIZE": "1", "ASAN_OPTIONS": ASAN, "UBSAN_OPTIONS": UBSAN,
        "LD_PRELOAD": ":".join(path for path in libraries if path),
    }  # fmt: skip


def commands(arguments: list[str], is_short: bool) -> list[list[str]]:
    """Return the commands to run, in order."""
    if arguments[:1] == ["--"]:
        return [arguments[1:]]
    has_path = any(Path(word.split("::")[0]).exists() for word in arguments if not word.startswith("-"))
    files = [] if has_path else SHORT if is_short else LONG
    pytest = [str(Path(sys.executable).with_name("pytest")), "-q", "--timeout=3600", "-p", "no:cacheprovider"]
    fuzz = [sys.executable, "scripts/fuzz.py", "--kernels", "native", "--count", str(FEW if is_short else MANY)]
    return [[*pytest, *files, *arguments], *([] if arguments else [fuzz])]


def main(arguments: list[str]) -> int:
    """Run the commands; return the first exit status that is not 0."""
    os.chdir(Path(__file__).parents[1])
    is_short = "--short" in arguments
    arguments = [word for word in arguments if word != "--short"]
    if (reason := why_impossible()) is not None:
        print(f"sanitize: {reason}", file=sys.stderr, flush=True)
        return 0 if is_short else NO_SANITIZER
    with tempfile.TemporaryDirectory(prefix="rdukit-sanitize-") as home:
        kept = {} if arguments[:1] == ["--"] else {"RDUKIT_HOME": home}
        for command in commands(arguments, is_short):
            if status := subprocess.run(command, env=environment() | kept, check=False).returncode:
                print(f"sanitize: {' '.join(command)} ended with status {status}", file=sys.stderr, flush=True)
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
