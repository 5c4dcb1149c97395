"""Install torch: its CPU build where there is no GPU, else what the index has, and say which and how large it is.

``torch_build.py PYTHON torch==VERSION INSTALLER…``: INSTALLER is the command that installs a requirement into the
environment of PYTHON, such as ``pip install``. TORCH_BUILD is ``auto`` (default), ``cpu`` or ``index``; the CPU build
comes from the installer's own index if that has it, else from TORCH_CPU_INDEX.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

#: The index of CPU builds that torch's own manual names; an empty TORCH_CPU_INDEX asks none.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
BUILDS = ("auto", "cpu", "index")
_GPU_FILES = ("/dev/nvidiactl", "/dev/nvidia0")
#: Prints the version, and bytes of all that only torch needs.
_REPORT = """
import importlib.metadata as metadata, re
size = 0
for each in metadata.distributions():
    if re.fullmatch(r"torch|triton|(nvidia|cuda)-.*", each.metadata["Name"].lower()):
        paths = (each.locate_file(file) for file in each.files or ())
        size += sum(path.stat().st_size for path in paths if path.is_file())
print(metadata.version("torch"), size)
"""


def attempts(requirement: str, build: str, has_gpu: bool, cpu_index: str) -> list[list[str]]:
    """Arguments for the installer, in the order in which they are tried.

    Raises:
        SystemExit: ``build`` is none of ``BUILDS``.
    """
    if build not in BUILDS:
        raise SystemExit(f"TORCH_BUILD is {build!r}; expected one of {', '.join(BUILDS)}")
    plain = [requirement]
    if build == "index" or (build == "auto" and has_gpu):
        return [plain]
    small = f"{requirement}+cpu"
    # Without dependencies, which belong to the usual index: another one must not choose them.
    elsewhere = [["--no-deps", "--index-url", cpu_index, small]] if cpu_index else []
    return [[small], *elsewhere, plain]


def install(python: str, requirement: str, installer: Sequence[str], environ: Mapping[str, str]) -> int:
    """Exit status of the installation; it says what was installed."""
    has_gpu = any(Path(path).exists() for path in _GPU_FILES)
    tried = attempts(
        requirement, environ.get("TORCH_BUILD") or "auto", has_gpu, environ.get("TORCH_CPU_INDEX", CPU_INDEX)
    )
    # An index that cannot be reached is given up soon.
    hasty = {**environ, "PIP_RETRIES": "1", "PIP_TIMEOUT": "20", "UV_HTTP_TIMEOUT": "20"}
    for arguments in tried[:-1]:
        if subprocess.run([*installer, *arguments], capture_output=True, check=False, env=hasty).returncode == 0:
            break
    # Again without a build: it takes what is installed, or what the index has, and the dependencies.
    status = subprocess.run([*installer, *tried[-1]], check=False).returncode
    if status:
        return status
    version, size = subprocess.run([python, "-c", _REPORT], capture_output=True, text=True, check=True).stdout.split()
    print(f"torch {version}: {int(size) / 2**20:,.0f} MiB", end="")
    is_large = len(tried) > 1 and not version.endswith("+cpu")
    print("; the index has no CPU build, so this one has libraries for GPUs" if is_large else "", flush=True)
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(install(sys.argv[1], sys.argv[2], sys.argv[3:], os.environ))
