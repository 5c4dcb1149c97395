"""A probe of this machine's fence: put a fence up, and try forbidden actions inside it."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import IO, Final

from rdukit.box.links import LOCAL_PORTS, part_address
from rdukit.errors import RdukitError
from rdukit.fence import kernel
from rdukit.fence.spec import NEEDED, FenceLimits, FencePart, FenceSpec, Way, choose_way
from rdukit.fence.start import program_paths, start_fenced

_TRY_S: Final = 20.0
#: An otherwise unused user id, for fenced programs without an owner.
NOBODY: Final = 65534

#: Program that runs inside and prints why each missing part is missing. It uses only the standard library.
_TRIES: Final = """
import ctypes, json, os, resource, sys
libc = ctypes.CDLL(None, use_errno=True)
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
missing = {}
if len([name for name in os.listdir("/proc") if name.isdigit()]) > 3:
    missing["namespaces"] = "it sees processes outside"
if os.path.exists(sys.argv[1]):
    missing["root"] = "it sees a file that is not its"
try:
    os.mkdir("/usr/.rdukit-fence")
    missing["root"] = "it writes to the system"
except OSError:
    pass
names = [line.split(":")[0].strip() for line in open("/proc/self/net/dev").read().splitlines()[2:]]
if names != ["lo"]:
    missing["network"] = "it sees the interfaces " + ", ".join(names)
if int(status["Uid"].split()[0]) == 0 and sys.argv[2] == "root":
    missing["user"] = "it is root"
capabilities = [status[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")]
if any(int(text, 16) for text in capabilities) or status["NoNewPrivs"].strip() != "1":
    missing["capabilities"] = "it has some, or may gain some"
if resource.getrlimit(resource.RLIMIT_NPROC)[1] != 64:
    missing["limits"] = "they are not those of its fence"
if status["Seccomp"].strip() != "2" or libc.unshare(0x10000000) == 0 or libc.socket(17, 3, 0) >= 0:
    missing["system-calls"] = "it may open namespaces or sockets of any family"
print(json.dumps(missing))
"""


@dataclass(frozen=True, slots=True)
class Fence:
    """A probe's result."""

    #: The way to put up a fence; ``None``: there is none.
    way: Way | None
    #: Missing part → reason.
    missing: Mapping[FencePart, str]

    @property
    def holds(self) -> bool:
        """Return whether a program can be fenced."""
        return self.way is not None

    @property
    def why(self) -> str:
        """The missing parts, in words."""
        return "; ".join(f"{part}: {why}" for part, why in self.missing.items())


@lru_cache(maxsize=1)
def what_holds() -> Fence:
    """Probe the fence, once for each process; this takes some tenths of a second."""
    way = choose_way(os.getuid() == 0)
    missing, has_run = _try(way)
    return Fence(way if has_run and not NEEDED & missing.keys() else None, MappingProxyType(missing))


@lru_cache(maxsize=1)
def why_no_address() -> str:
    """Return why the loopback of a fenced program gets no additional address and ports; empty if it does."""
    way = choose_way(os.getuid() == 0)
    command = [sys.executable, "-I", "-S", "-c", f"import socket; socket.create_server(({part_address(0)!r}, 0))"]
    spec = FenceSpec(
        command, {}, "/tmp", program_paths(command[:1]), uid=NOBODY if way is Way.ROOT else None, parent=os.getpid(),
        address=part_address(0), ports=LOCAL_PORTS,
    )  # fmt: skip
    try:
        with tempfile.TemporaryFile() as output:
            status = _end_of(start_fenced(spec, way, output))
            output.seek(0)
            return "" if status == 0 else output.read().decode(errors="replace").strip() or f"status {status}"
    except (OSError, RdukitError) as error:
        return str(error)


def _try(way: Way) -> tuple[dict[FencePart, str], bool]:
    """Return the missing parts, and whether the test program ran in the fence."""
    home = Path.home()
    with tempfile.TemporaryDirectory(dir=home if os.access(home, os.W_OK) else None) as folder:
        secret = Path(folder, "secret")
        secret.touch()
        command = [sys.executable, "-I", "-S", "-c", _TRIES, str(secret), way]
        try:
            spec = FenceSpec(
                command, {}, "/tmp", program_paths(command[:1]), limits=FenceLimits(processes=64),
                uid=NOBODY if way is Way.ROOT else None, parent=os.getpid(), hidden=[folder],
            )  # fmt: skip
            with tempfile.TemporaryFile() as output:
                status = _end_of(start_fenced(spec, way, output))
                output.seek(0)
                return {**_landlock(), **_read(status, output)}, status == 0
        except (OSError, RdukitError) as error:
            return {FencePart.ROOT: str(error)}, False


def _end_of(process: "subprocess.Popen[bytes]") -> int:
    try:
        return process.wait(_TRY_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _read(status: int, output: IO[bytes]) -> dict[FencePart, str]:
    text = output.read().decode(errors="replace").strip()
    if status == 0:
        return {FencePart(name): why for name, why in json.loads(text.splitlines()[-1]).items()}
    last = text.rpartition("\n")[2]
    name, _, why = last.removeprefix("fence: ").partition(": ")
    known = last.startswith("fence: ") and name in set(FencePart)
    return {FencePart(name): why} if known else {FencePart.ROOT: last or f"the attempt ended with status {status}"}


def _landlock() -> dict[FencePart, str]:
    try:
        abi = kernel.landlock_abi()
    except OSError as error:
        return {FencePart.LANDLOCK: f"the kernel has no Landlock, or it is switched off: {error.strerror}"}
    return {} if abi >= kernel.ABI_REFER else {FencePart.LANDLOCK: f"the kernel's is version {abi}; 2 is needed"}
