"""A hostile program in a fence: what it tries ends with the kernel's refusal, and what is outside never notices."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit.fence.probe import what_holds
from support import shows
from support.fences import Run

pytestmark = [
    shows("security", "job-boxes", "box-fence"),
    shows("security", "job-boxes"),
    pytest.mark.skipif(not what_holds().holds, reason=f"no fence holds here: {what_holds().why}"),
]


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
