"""Two real applications: whether one can read the device memory of the other, and what isolation leaves alone."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from rdukit.fence import kernel
from support import shows
from support.node.daemons import environment, running_daemon

SECRET = "weights-of-the-other-tenant"
WAYS = ["mem", "fd", "map_files", "process_vm_readv", "pidfd_getfd", "ptrace"]

VICTIM = f"""
import ctypes, os, sys
from rdukit_node.isolation import apply
from rdukit_node.leases.memory import create_region, map_region
if sys.argv[1] == "isolated":
    apply([0], 64)
descriptor = create_region("r", 4096)
region = map_region(descriptor, 4096)
region[:{len(SECRET)}] = {SECRET.encode()!r}
print(os.getpid(), ctypes.addressof(ctypes.c_ubyte.from_buffer(region)), descriptor, flush=True)
sys.stdin.read()
"""

ATTACKER = """
import ctypes, json, os, sys
from rdukit_node.isolation import apply
if sys.argv[1] == "isolated":
    apply([1], 64)
pid, address, descriptor = map(int, sys.argv[2:])
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
size = 27

def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def mem():
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as stream:
        stream.seek(address)
        return stream.read(size)

def fd():
    with open(f"/proc/{pid}/fd/{descriptor}", "rb", buffering=0) as stream:
        return stream.read(size)

def map_files():
    with open(f"/proc/{pid}/map_files/{address:x}-{address + 4096:x}", "rb", buffering=0) as stream:
        return stream.read(size)

class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

def process_vm_readv():
    copy = ctypes.create_string_buffer(size)
    here, there = Piece(ctypes.addressof(copy), size), Piece(address, size)
    check(libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))
    return copy.raw

def pidfd_getfd():
    other = os.pidfd_open(pid)
    copy = check(libc.syscall(438, other, descriptor, 0))
    return os.pread(copy, size, 0)

def ptrace():
    check(libc.ptrace(16, pid, None, None))
    os.waitpid(pid, 0)
    words = [libc.ptrace(2, pid, address + at, None) for at in range(0, 32, 8)]
    check(libc.ptrace(17, pid, None, None))
    return b"".join(word.to_bytes(8, "little", signed=True) for word in words)[:size]

read = {}
for way in (mem, fd, map_files, process_vm_readv, pidfd_getfd, ptrace):
    try:
        read[way.__name__] = way().decode()
    except OSError as error:
        read[way.__name__] = type(error).__name__
print(json.dumps(read))
"""


def landlock_is_there() -> bool:
    try:
        return kernel.landlock_abi() >= kernel.ABI_REFER
    except OSError:
        return False


pytestmark = [
    shows("isolation"),
    shows("isolation"),
    pytest.mark.skipif(not landlock_is_there(), reason="the kernel has no Landlock from ABI 2 on"),
]


@contextmanager
def victim(isolation: str) -> Iterator[list[str]]:
    """Runs an application with a secret in its device memory; gives pid, address and descriptor."""
    process = subprocess.Popen(
        [sys.executable, "-c", VICTIM, isolation],
        env=environment(Path("/nowhere")), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def attack(isolation: str, target: list[str]) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", ATTACKER, isolation, *target],
        env=environment(Path("/nowhere")), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    assert list(read) == WAYS
    return dict(read)


def run_isolated(program: str, folder: Path, **settings: str) -> str:
    """Output of a program that isolated itself before."""
    prelude = "from rdukit_node.isolation import apply\nreport = apply([0, 1], 64)\n"
    variables = environment(folder / "home", **settings)
    done = subprocess.run(
        [sys.executable, "-c", prelude + program],
        cwd=folder, env=variables, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="some ways need an administrator even without isolation")
def test_without_isolation_an_administrators_program_reads_the_memory_of_another() -> None:
    with victim("plain") as target:
        assert attack("plain", target) == dict.fromkeys(WAYS, SECRET)


@pytest.mark.parametrize("other", ["isolated", "plain"])
def test_an_isolated_program_reads_no_memory_of_another(other: str) -> None:
    with victim(other) as target:
        assert attack("isolated", target) == dict.fromkeys(WAYS, "PermissionError")


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user may be kept from debugging by other means")
def test_a_debugger_from_outside_still_works() -> None:
    with victim("isolated") as target:
        assert attack("plain", target) == dict.fromkeys(WAYS, SECRET)


TENANT = f"""
import ctypes, os, sys
from rdukit_node.private_node import open_lease
lease = open_lease(sys.argv[1], arch=None, tiles=1, memory_bytes=4096)
region = lease.allocate("r", 4096).buffer
region[:{len(SECRET)}] = {SECRET.encode()!r}
print(os.getpid(), ctypes.addressof(ctypes.c_ubyte.from_buffer(region)), 0, flush=True)
sys.argv[1:] = ["plain", *sys.stdin.readline().split()]  # it is isolated by its lease alone
if sys.argv[2:]:
    exec({ATTACKER!r})
"""


def place_in(pid: int) -> list[str]:
    """Process, address of a mapped page and an open descriptor, as tenants print them."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        start, end = (int(text, 16) for text in line.split()[0].split("-"))
        if end - start == 4096 and "/" in line:
            return [str(pid), str(start), "3"]
    raise AssertionError(f"process {pid} has mapped no single page of a file")


def test_tenants_of_one_daemon_read_neither_each_other_nor_the_daemon() -> None:
    with running_daemon() as daemon, ExitStack() as stack:
        variables = environment(daemon.home, RDUKIT_NODE="daemon", RDUKIT_SND_SOCKET=str(daemon.socket))
        tenants = []
        for name in ("first", "second"):
            process = subprocess.Popen(
                [sys.executable, "-c", TENANT, name],
                env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            tenants.append(stack.enter_context(process))
        places = [tenant.stdout.readline().split() for tenant in tenants if tenant.stdout]
        client = stack.enter_context(closing(daemon.connect()))
        leases = {lease["application"]: lease for lease in client.call("status")["leases"]}
        for name, (pid, _, _) in zip(("first", "second"), places, strict=True):
            report = leases[name]["isolation"][pid]
            assert report["landlock"].startswith("applied: a separate domain")
        for attacker, target in zip(tenants, (places[1], place_in(daemon.process.pid)), strict=True):
            read, _ = attacker.communicate(" ".join(target) + "\n", timeout=60)
            assert json.loads(read) == dict.fromkeys(WAYS, "PermissionError")


def test_forks_and_programs_that_an_application_starts_are_in_its_domain(tmp_path: Path) -> None:
    with victim("plain") as target:
        arguments = ["-c", ATTACKER, "plain", *target]
        program = f"import subprocess, sys\nsubprocess.run([sys.executable, *{arguments!r}], check=True)"
        read = json.loads(run_isolated(program, tmp_path))
    assert read == dict.fromkeys(WAYS, "PermissionError")


def test_isolation_is_reported_and_applied_once_a_process(tmp_path: Path) -> None:
    program = """
import json, os, resource
first = dict(report)
again = [apply([tile], 64) for tile in range(40)]  # a second domain each time would meet the kernel's limit of 16
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
core, dumped = resource.getrlimit(resource.RLIMIT_CORE), open("/proc/self/coredump_filter").read()
print(json.dumps([first, all(other == first for other in again), status["NoNewPrivs"], core, dumped]))
"""
    first, is_same, no_new, core, dumped = json.loads(run_isolated(program, tmp_path))
    assert first == {
        "mode": "auto",
        "no_new_privileges": "applied",
        "landlock": f"applied: a separate domain (ABI {kernel.landlock_abi()})",
        "core_dumps": "applied: none, and no device memory for a collector of core dumps",
        "hidden": "off",
        "cores": "off",
    }
    assert is_same
    assert (no_new, core) == ("1", [0, 0])
    assert int(dumped, 16) & 0b1001010 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only an administrator's program can become somebody else's")
def test_an_ordinary_users_program_is_isolated_as_well(tmp_path: Path) -> None:
    program = """
import json, os
from rdukit_node.isolation import apply, process
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(json.dumps(apply([0], 64)))
"""
    variables = environment(Path("/nowhere"))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    # It is not dumpable since it changed its user, and may not write to /proc/self: said, not hidden.
    assert report.pop("core_dumps") == (
        "applied: no files; collectors of core dumps are not limited: Permission denied"
    )
    assert [text.partition(":")[0] for text in report.values()] == ["auto", "applied", "applied", "off", "off"]


def test_settings_switch_parts_on_and_all_off(tmp_path: Path) -> None:
    program = "import json, os\nprint(json.dumps([report, sorted(os.sched_getaffinity(0))]))"
    report, _ = json.loads(run_isolated(program, tmp_path, RDUKIT_ISOLATION_MODE="off"))
    assert report == {"mode": "off"}
    settings = {"RDUKIT_ISOLATION_CORES": "1", "RDUKIT_ISOLATION_DEBUGGABLE": "0", "RDUKIT_ISOLATION_MODE": "strict"}
    report, cores = json.loads(run_isolated(program, tmp_path, **settings))
    assert report["hidden"] == "applied"
    assert report["cores"] == f"applied: {','.join(map(str, cores))}"
    assert len(cores) <= len(os.sched_getaffinity(0)) // 2 or len(os.sched_getaffinity(0)) == 1


def test_writing_is_kept_to_the_folders_asked_for(tmp_path: Path) -> None:
    for name in ("yes", "no", "home", "tmp"):
        (tmp_path / name).mkdir()
    program = """
import json
def write(path):
    try:
        open(path, "w").write("x")
        return True
    except PermissionError:
        return False
print(json.dumps([report["landlock"], *map(write, ["yes/a", "no/a", "home/a", "tmp/a", "/dev/null"])]))
"""
    settings = {"RDUKIT_ISOLATION_WRITABLE": str(tmp_path / "yes"), "TMPDIR": str(tmp_path / "tmp")}
    landlock, *written = json.loads(run_isolated(program, tmp_path, **settings))
    assert f"writing only beneath {tmp_path / 'yes'} " in landlock
    assert written == [True, False, True, True, True]


def test_ordinary_programs_work_in_isolation(tmp_path: Path) -> None:
    program = """
import multiprocessing, os, signal, socket, subprocess, sys, tempfile, threading
from concurrent.futures import ProcessPoolExecutor

os.makedirs("a/b"); open("a/f", "w").write("x")
os.rename("a/f", "a/b/f"); os.link("a/b/f", "l"); os.symlink("l", "s"); os.mkfifo("p"); os.replace("l", "a/l")
open(tempfile.mkstemp()[1], "w").write("x")
assert subprocess.run(["sh", "-c", "echo $$; kill -0 $PPID"], check=True, capture_output=True).stdout
os.kill(os.getppid(), 0)  # signals out of the domain
server = socket.create_server(("127.0.0.1", 0)); socket.create_connection(server.getsockname()).close()
for method in ("fork", "spawn", "forkserver"):
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        assert list(pool.map(abs, [-1, -2, -3])) == [1, 2, 3]
child = os.fork()
if child == 0:
    nested = apply([2], 64)
    os._exit(0 if nested["landlock"].startswith("applied") else 1)
assert os.waitpid(child, 0)[1] == 0
sleeper = subprocess.Popen(["sleep", "60"])
open(f"/proc/{sleeper.pid}/mem", "rb").close()  # its own children are its own
sleeper.kill(); sleeper.wait()
print("done")
"""
    program = program.replace("\n", "\n    ").strip()
    assert run_isolated(f"if __name__ == '__main__':\n    {program}", tmp_path).endswith("done\n")


@pytest.mark.long
def test_data_loader_workers_from_before_and_after_work(tmp_path: Path) -> None:
    program = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from rdukit_node.isolation import apply

data = TensorDataset(torch.arange(64.0))
before = iter(DataLoader(data, batch_size=8, num_workers=1, persistent_workers=True))
next(before)
assert apply([0], 64)["landlock"].startswith("applied")
total = sum(batch[0].sum() for batch in DataLoader(data, batch_size=8, num_workers=1))
assert total == 64 * 63 / 2
assert sum(batch[0].sum() for batch in before) == total - 28
del before  # ends workers that are outside of the domain
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_a_strict_program_does_not_run_without_a_part(tmp_path: Path) -> None:
    program = """
import errno
from rdukit.errors import RuntimeFault
from rdukit.fence import kernel
from rdukit_node.isolation import apply

for _ in range(16):  # the kernel's limit
    kernel.set_no_new_privileges(); kernel.enter_landlock_domain(kernel.landlock_abi())
assert apply([0], 64)["landlock"] == "unavailable: 16 Landlock domains are nested already"
import os
os.environ["RDUKIT_ISOLATION_MODE"] = "strict"
try:
    apply([0], 64)
except RuntimeFault as error:
    print(error.message)
"""
    variables = environment(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.startswith("isolation is strict, but landlock is unavailable: 16 Landlock domains"), done.stderr


def test_an_isolated_program_can_be_killed_and_waited_for() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", VICTIM, "isolated"],
        env=environment(Path("/nowhere")), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    assert select.select([process.stdout], [], [], 60)[0]
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    process.stdin.close()
    process.stdout.close()
