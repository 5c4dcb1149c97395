"""A hostile program in a fence: what it tries ends with the kernel's refusal, and what is outside never notices."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rdukit.fence.probe import what_holds
from rdukit.fence.spec import DISK_LIMIT, MEMORY_LIMIT, NOT_FENCED, FenceLimits, FenceSpec, Way
from rdukit.fence.start import program_paths, start_fenced

pytestmark = pytest.mark.skipif(not what_holds().holds, reason=f"no fence holds here: {what_holds().why}")

START_S = 30.0
OTHER_PYTHON = "/usr/bin/python3"
OTHER_USER = ["setpriv", "--reuid", "65533", "--regid", "65533", "--clear-groups", OTHER_PYTHON, "-I"]
#: Starts, as a user without rights, what its input says, and ends as that does.
DRIVER = f"""
import json, os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2] / "core")!r})
from rdukit.fence.spec import FenceLimits, FenceSpec, Way
from rdukit.fence.start import start_fenced
text = sys.stdin.read()
if not text:
    sys.exit(0)
given = json.loads(text)
given |= {{"limits": FenceLimits(**given["limits"]), "parent": os.getpid()}}
process = start_fenced(FenceSpec(**given), Way.USER)
status = process.wait()
os.kill(os.getpid(), -status) if status < 0 else sys.exit(status)
"""
UID = 219_999
#: Before each attack: how to try something and say what came of it.
PREAMBLE = """
import ctypes, errno, json, os, resource, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def attempt(act):
    try:
        found = act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return found if isinstance(found, (str, int, list)) else "done"
def call(name, *arguments):
    ctypes.set_errno(0)
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
def system_call(number, *arguments):
    if libc.syscall(ctypes.c_long(number), *arguments) < 0:
        raise OSError(ctypes.get_errno(), str(number))
"""

Run = Callable[..., Any]


class Fenced:
    """What a program of a test said, and how it ended."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text

    @property
    def said(self) -> Any:
        """The JSON of its last line."""
        assert self.status == 0, self.text
        return json.loads(self.text.splitlines()[-1])


@pytest.fixture(params=[Way.ROOT, Way.USER])
def run(request: pytest.FixtureRequest, folder: Path) -> Run:
    """Runs code in a fence, of each kind that this machine has."""
    way: Way = request.param
    if way is Way.ROOT and os.getuid() != 0:
        pytest.skip("only root has fences of this kind")
    if way is Way.USER and os.getuid() == 0 and not has_other_user(folder):
        pytest.skip(f"{OTHER_PYTHON} of another user cannot run our code")

    def run_code(code: str, *words: object, limits: FenceLimits | None = None, **more: Any) -> Fenced:
        process, output = start(way, folder / "work", code, *words, limits=limits, **more)
        process.wait(START_S)
        return Fenced(process.returncode, output.read_text())

    return run_code


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a folder ``work`` that everybody may write; pytest's own folders are closed to other users."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    (folder / "work").mkdir()
    (folder / "work").chmod(0o777)
    yield folder
    # Folders in folders can be too deep for Python's own way to remove them.
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def has_other_user(folder: Path) -> bool:
    """A user without rights can run the launcher here."""
    try:
        words = [*OTHER_USER, "-c", DRIVER]
        return subprocess.run(words, check=False, cwd=folder, input=b"", timeout=START_S).returncode == 0
    except FileNotFoundError:
        return False


def start(
    way: Way,
    work: Path,
    code: str,
    *words: object,
    limits: FenceLimits | None = None,
    more: Sequence[str] = (),
    **rest: Any,
) -> "tuple[subprocess.Popen[bytes], Path]":
    is_other = way is Way.USER and os.getuid() == 0
    python = OTHER_PYTHON if is_other else sys.executable
    command = [python, "-I", "-S", "-c", PREAMBLE + code, str(work), *map(str, words)]
    paths = [*program_paths(command[:1]), *more]
    output = work.with_suffix(".txt")
    limits = limits or FenceLimits(processes=64)
    given = {"folder": str(work), "readable": paths, "writable": [str(work)], **rest}
    with output.open("wb") as stream:
        if not is_other:
            uid = UID if way is Way.ROOT else None
            spec = FenceSpec(command, {"HOME": str(work)}, limits=limits, uid=uid, parent=os.getpid(), **given)
            return start_fenced(spec, way, stream), output
        process = subprocess.Popen(
            [*OTHER_USER, "-c", DRIVER],
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            cwd="/",
            pass_fds=rest.get("held", ()),
        )
        assert process.stdin is not None
        process.stdin.write(
            json.dumps({"command": command, "environment": {}, **given, "limits": asdict(limits)}).encode()
        )
        process.stdin.close()
        return process, output


def listed_processes() -> str:
    return subprocess.run(["ps", "-eo", "stat,args"], check=True, capture_output=True, text=True).stdout


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def neighbour() -> Iterator["subprocess.Popen[bytes]"]:
    """A process of somebody else, with a secret among its variables."""
    process = subprocess.Popen(["sleep", "600"], env={"SECRET": "of the neighbour"})
    yield process
    process.kill()
    process.wait()


def test_other_processes_are_not_seen_and_get_no_signals(run: Run, neighbour: "subprocess.Popen[bytes]") -> None:
    code = """
pid = int(sys.argv[2])
print(json.dumps({
    "seen": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
    "environment": attempt(lambda: open(f"/proc/{pid}/environ").read()),
    "signal": attempt(lambda: os.kill(pid, 9)),
    "all": attempt(lambda: os.kill(-1, 0)),
    "first": attempt(lambda: os.kill(1, 9)),
    "memory": attempt(lambda: open("/proc/1/mem", "rb").read(1)),
    "variables": attempt(lambda: open("/proc/1/environ").read()),
}))
"""
    said = run(code, neighbour.pid).said
    assert len(said["seen"]) == 2 and neighbour.pid not in said["seen"]
    assert said["environment"] == "ENOENT" and said["signal"] == "ESRCH"
    assert said["memory"] == said["variables"] == "EACCES"
    assert neighbour.poll() is None


def test_files_that_are_not_its_own_are_not_there(run: Run, folder: Path) -> None:
    token = folder / "token"
    token.write_text("rdk_secret")
    link = folder / "work" / "link"
    link.symlink_to(token)
    code = """
print(json.dumps({
    "token": attempt(lambda: open(sys.argv[2]).read()),
    "link": attempt(lambda: open(sys.argv[1] + "/link").read()),
    "up": attempt(lambda: open("/proc/1/root" + sys.argv[2]).read()),
    "shadow": attempt(lambda: open("/etc/shadow").read()),
    "disks": [name for name in os.listdir("/dev") if name.startswith(("vd", "sd", "nvme", "mem"))],
    "users": attempt(lambda: open("/etc/passwd").read().count("\\n")),
}))
"""
    said = run(code, token).said
    assert said["token"] == said["link"] == said["shadow"] == "ENOENT"
    assert said["up"] in {"ENOENT", "EACCES"} and said["disks"] == [] and said["users"] == 1


def test_system_and_packages_cannot_be_written(run: Run) -> None:
    code = """
import os as module
print(json.dumps([
    attempt(lambda: open(module.__file__, "a")), attempt(lambda: open("/usr/bin/rdukit-was-here", "w")),
    attempt(lambda: os.mkdir("/here")), attempt(lambda: open("/etc/passwd", "a")),
    attempt(lambda: os.chmod("/usr", 0o777)), attempt(lambda: os.rename("/usr", "/usr2")),
    attempt(lambda: open("/dev/new", "w")),
    attempt(lambda: os.mknod(sys.argv[1] + "/disk", 0o60666, os.makedev(254, 0))),
    attempt(lambda: open("/proc/sys/kernel/core_pattern", "a")),
    attempt(lambda: open("/proc/sys/vm/drop_caches", "a")),
]))
"""
    assert set(run(code).said) <= {"EROFS", "EACCES", "EPERM", "EBUSY", "EXDEV", "ENOENT"}


def test_its_own_folders_and_temporary_ones_can_be_written(run: Run, folder: Path) -> None:
    code = """
for folder in (sys.argv[1], "/tmp", "/dev/shm"):
    open(folder + "/mine", "w").write("mine")
os.mkdir(sys.argv[1] + "/a"); os.rename(sys.argv[1] + "/mine", sys.argv[1] + "/a/mine")
print(json.dumps("done"))
"""
    assert run(code).said == "done"
    assert (folder / "work" / "a" / "mine").read_text() == "mine"
    assert not Path("/tmp/mine").exists() and not Path("/dev/shm/mine").exists()


def test_calls_that_administer_the_machine_or_look_into_it_are_refused(run: Run) -> None:
    code = """
machine = os.uname().machine
numbers = {"bpf": (321, 280), "perf_event_open": (298, 241), "add_key": (248, 217), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "kexec_load": (246, 104), "open_by_handle_at": (304, 265), "pidfd_getfd": (438, 438),
    "open_tree": (428, 428), "fsopen": (430, 430), "clock_adjtime": (305, 266), "reboot": (169, 142)}
zeros = [ctypes.c_long(0)] * 5
said = {name: attempt(lambda: system_call(number[machine == "aarch64"], *zeros)) for name, number in numbers.items()}
new_user = ctypes.c_long(0x10000000 | 17)
said["clone3"] = attempt(lambda: system_call(435, *zeros))
said |= {
    "ptrace": attempt(lambda: call("ptrace", 16, 1, 0, 0)),
    "process_vm_readv": attempt(lambda: call("process_vm_readv", 1, None, 0, None, 0, 0)),
    "mount": attempt(lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None)),
    "umount": attempt(lambda: call("umount2", b"/proc", 2)),
    "chroot": attempt(lambda: os.chroot("/tmp")),
    "unshare": attempt(lambda: call("unshare", 0x10000000)),
    "setns": attempt(lambda: call("setns", os.open("/proc/self/ns/net", 0), 0)),
    "clone": attempt(lambda: system_call(220 if machine == "aarch64" else 56, new_user, *zeros[:4])),
    "clock": attempt(lambda: time.clock_settime(time.CLOCK_REALTIME, 0)),
    "name": attempt(lambda: socket.sethostname("mine")),
}
print(json.dumps(said))
"""
    said = run(code).said
    assert said.pop("clone3") == "ENOSYS"
    assert set(said.values()) == {"EPERM"}, said


def test_sockets_reach_its_own_loopback_and_nothing_else(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gateway, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0rdukit-fence-test")
        abstract.listen()
        code = """
import threading
def knock(family, address):
    with socket.socket(family) as caller:
        caller.settimeout(3)
        caller.connect(address)
own = socket.create_server(("127.0.0.1", 0))
print(json.dumps({
    "own": attempt(lambda: knock(socket.AF_INET, own.getsockname())),
    "gateway": attempt(lambda: knock(socket.AF_INET, ("127.0.0.1", int(sys.argv[2])))),
    "outside": attempt(lambda: knock(socket.AF_INET, ("192.0.2.1", 80))),
    "abstract": attempt(lambda: knock(socket.AF_UNIX, "\\0rdukit-fence-test")),
    "netlink": attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9)),
    "route": attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)),
    "packet": attempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    "vsock": attempt(lambda: socket.socket(socket.AF_VSOCK)),
    "kernel": attempt(lambda: socket.socket(socket.AF_ALG)),
    "raw": attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)),
    "interfaces": sorted(line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]),
}))
"""
        said = run(code, gateway.getsockname()[1]).said
    assert said["own"] == "done" and said["interfaces"] == ["lo"]
    assert (said["gateway"], said["outside"], said["abstract"]) == ("ECONNREFUSED", "ENETUNREACH", "ECONNREFUSED")
    assert {said[name] for name in ("packet", "vsock", "kernel")} == {"EAFNOSUPPORT"}
    assert said["netlink"] == "EPROTONOSUPPORT" and said["route"] == "done"
    assert said["raw"] == "EPERM"


def test_only_a_socket_that_it_was_given_answers(run: Run, folder: Path) -> None:
    paths = [folder / "given.sock", folder / "other.sock"]
    listening = [socket.socket(socket.AF_UNIX) for _ in paths]
    for path, one in zip(paths, listening, strict=True):
        one.bind(str(path))
        path.chmod(0o666)
        one.listen()
    code = """
def knock(path):
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(path)
print(json.dumps([attempt(lambda: knock(path)) for path in sys.argv[2:]]))
"""
    assert run(code, *paths, sockets=[str(paths[0])]).said == ["done", "ENOENT"]
    for one in listening:
        one.close()


def test_a_fork_bomb_meets_its_limit_and_ends_with_its_program(run: Run) -> None:
    code = """
made = 0
try:
    while made < 1000:
        if os.fork() == 0:
            time.sleep(600)
        made += 1
except OSError as error:
    print(json.dumps([made, errno.errorcode[error.errno]]))
"""
    made, error = run(code).said
    assert 10 < made < 64 and error == "EAGAIN"
    assert "time.sleep(600)" not in listed_processes()


def test_where_memory_runs_out_it_is_ended_before_others(run: Run) -> None:
    code = """
def lower(text):
    with open("/proc/self/oom_score_adj", "w") as file: file.write(text)
print(json.dumps([attempt(lambda: int(open("/proc/self/oom_score_adj").read())), attempt(lambda: lower("-500"))]))
"""
    assert run(code).said == [500, "EACCES"]


def test_memory_files_and_their_size_meet_their_limits(run: Run) -> None:
    code = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
said = {}
try:
    bytearray(512 << 20); said["memory"] = "done"
except MemoryError:
    said["memory"] = "refused"
said["sparse"] = attempt(lambda: os.truncate(os.open(sys.argv[1] + "/sparse", os.O_CREAT | os.O_RDWR), 1 << 40))
said["temporary"] = attempt(lambda: os.posix_fallocate(os.open("/dev/shm/much", os.O_CREAT | os.O_RDWR), 0, 1 << 30))
held = []
def open_many():
    while True: held.append(os.open("/dev/null", 0))
said["files"] = attempt(open_many)
for one in held: os.close(one)
said["core"] = resource.getrlimit(resource.RLIMIT_CORE)[1]
print(json.dumps(said))
"""
    limits = FenceLimits(256 << 20, 64, 1 << 30, 100, temporary_bytes=1 << 20)
    assert run(code, limits=limits).said == {
        "memory": "refused", "sparse": "EFBIG", "temporary": "ENOSPC", "files": "EMFILE", "core": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("n = 0\nwhile True:\n    n += 1; open(str(n), 'wb').write(bytes(1 << 20))", "bytes in its folders"),
        ("n = 0\nwhile True:\n    n += 1; open(str(n), 'wb')", "files and folders"),
        (
            "d = os.open(sys.argv[1] + '/gone', os.O_CREAT | os.O_RDWR); os.unlink(sys.argv[1] + '/gone')\n"
            "os.write(d, bytes(64 << 20)); time.sleep(600)",
            "bytes in its folders",
        ),
        (
            "while True:\n    os.mkdir('a' * 200); os.chdir('a' * 200); len(os.listdir()) \n"
            "    if os.stat('.').st_nlink > 3: break",
            "longer than a path",
        ),
    ],
)  # fmt: skip
def test_filling_the_disk_ends_the_program_with_the_reason(run: Run, code: str, why: str) -> None:
    fenced = run(code, limits=FenceLimits(processes=64, disk_bytes=32 << 20, disk_files=2000))
    assert fenced.status == DISK_LIMIT
    assert "fence: disk: " in fenced.text and why in fenced.text


@pytest.mark.parametrize(
    "code",
    [
        "for _ in range(3):\n    if os.fork() == 0: held = bytes(os.urandom(1 << 20)) * 48; time.sleep(600)",
        "import mmap\nheld = mmap.mmap(-1, 128 << 20); m = b'a' * (1 << 20)\nfor _ in range(128): held.write(m)",
        "held = os.memfd_create('a'); m = b'a' * (1 << 20)\nfor _ in range(128): os.write(held, m)",
        "held = open('/dev/shm/much', 'wb'); m = b'a' * (1 << 20)\nfor _ in range(128): held.write(m)",
    ],
    ids=["processes", "shared", "memory file", "temporary file"],
)
def test_memory_of_all_its_processes_together_meets_its_limit(run: Run, code: str) -> None:
    fenced = run(code + "\ntime.sleep(600)", limits=FenceLimits(memory_bytes=96 << 20, processes=64))
    assert fenced.status == MEMORY_LIMIT, fenced.text
    assert "fence: memory: more than 100663296 bytes of all its processes" in fenced.text


def test_what_its_processes_share_counts_once(run: Run) -> None:
    code = """
held = bytes(os.urandom(1 << 20)) * 48
children = [os.fork() for _ in range(3)]
time.sleep(3)
if all(children): print(json.dumps([os.wait()[1] for _ in children]))
"""
    assert run(code, limits=FenceLimits(memory_bytes=96 << 20, processes=64)).said == [0, 0, 0]


def test_it_ends_as_the_program_did(run: Run) -> None:
    assert run("os._exit(7)").status == 7
    assert run("os.kill(os.getpid(), signal.SIGSEGV)").status == -signal.SIGSEGV
    assert run("os.kill(os.getpid(), signal.SIGKILL)").status == -signal.SIGKILL


def test_what_its_folder_lacks_is_said_with_the_part(run: Run) -> None:
    fenced = run("", sockets=["/no/such.sock"])
    assert fenced.status == NOT_FENCED
    assert fenced.text.startswith("fence: root: ") and "/no/such.sock" in fenced.text


def test_the_whole_root_folder_is_given_to_nobody(run: Run) -> None:
    for more in ({"hidden": ["/"]}, {"more": ["/"]}):
        fenced = run("print(json.dumps('ran'))", **more)
        assert fenced.status == NOT_FENCED and "the whole root folder" in fenced.text


@pytest.mark.parametrize("whose", ["launcher", "first", "parent"])
def test_whoever_is_killed_takes_all_that_is_inside_along(whose: str, folder: Path) -> None:
    way = what_holds().way
    assert way is not None
    work = folder / "work"
    mark = f"fence-{os.getpid()}-{whose}"
    code = "os.fork(); os.setsid() if os.getpid() % 2 else None; open(sys.argv[1] + '/up', 'w'); time.sleep(600)"
    parent = os.fork()
    if parent == 0:
        process, _ = start(way, work, code, mark)
        (folder / "pid").write_text(str(process.pid))
        while True:
            time.sleep(1)
    wait_until((work / "up").exists)
    launcher = int((folder / "pid").read_text())
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    victim = {"launcher": launcher, "first": int(children[0]), "parent": parent}[whose]
    os.kill(victim, signal.SIGKILL)

    def is_gone() -> bool:
        return not any(mark in line and not line.startswith("Z") for line in listed_processes().splitlines())

    wait_until(is_gone)
    if whose != "parent":
        os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)


def test_sigterm_reaches_the_program(folder: Path) -> None:
    way = what_holds().way
    assert way is not None
    work = folder / "work"
    code = """
signal.signal(signal.SIGTERM, lambda *_: os._exit(9))
open(sys.argv[1] + "/up", "w")
while True: time.sleep(1)
"""
    process, _ = start(way, work, code)
    wait_until((work / "up").exists)
    process.terminate()
    assert process.wait(START_S) == 9


def test_a_user_without_rights_has_a_fence_too_or_is_told_why_not() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    python = Path("/usr/bin/python3")
    core = Path(__file__).parents[2] / "core"
    code = f"import sys; sys.path.insert(0, {str(core)!r})\nfrom rdukit.fence.probe import what_holds\n"
    code += "found = what_holds(); print(found.way, found.why)"
    words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", str(python), "-c", code]
    try:
        ran = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60, cwd="/")
    except FileNotFoundError as error:
        pytest.skip(f"{error.filename} is not installed")
    if ran.returncode:
        pytest.skip(f"{python} of another user cannot run our code: {ran.stderr.strip()[-200:]}")
    way, _, why = ran.stdout.strip().partition(" ")
    assert way == "user" or why, ran.stdout


def test_what_is_hidden_does_not_show_but_what_is_named_within_does(run: Run, folder: Path) -> None:
    home = folder / "home"
    (home / "open").mkdir(parents=True)
    (home / "secret").write_text("secret")
    folder.chmod(0o755)
    code = "print(json.dumps([attempt(lambda: sorted(os.listdir(path))) for path in sys.argv[2:]]))"
    assert run(code, home, home / "open", hidden=[str(home)], more=[str(folder), str(home / "open")]).said == [
        ["open"],
        [],
    ]


def test_the_first_process_keeps_what_is_held_and_the_program_does_not_have_it(run: Run, folder: Path) -> None:
    descriptor = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)
    code = """
names = [name for name in os.listdir("/proc/self/fd") if int(name) > 2]
print(json.dumps([attempt(lambda: os.readlink("/proc/self/fd/" + name)) for name in names]))
"""
    assert not any("lock" in path for path in run(code, held=[descriptor]).said)
    os.close(descriptor)
