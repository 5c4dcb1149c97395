"""Attacks of a hostile box of a tenant's job: one class of tests that each kind of wall inherits.

A box is a program that runs what its file says (``tests/integration/platform_box.py``), as a job of the real platform.
"""

import json
import os
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest

from rdukit.pef.trust import key_path
from rdukit_platform.client.http import ApiClient
from support import wait_until
from support.platform.processes import PlatformUnderTest

#: Of the platform whose boxes are tried, whatever is round them; and ``worker.box_disk`` of 64 MiB.
ENVIRONMENT: Final = {
    "RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_WORKER_BOX_PIDS": "100", "AWS_SECRET_ACCESS_KEY": "of the cloud",
}  # fmt: skip
#: A job ends in seconds; on a machine that does much else, in minutes.
PATIENCE_S: Final = 600.0
#: Before each attack: how to try something and say what came of it.
PREAMBLE: Final = """
import ctypes, errno, json, os, pathlib, resource, signal, socket, sys, time
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
def read(path):
    with open(path, "rb") as stream:
        return stream.read().hex()
def knock(address):
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as caller:
        caller.settimeout(3)
        caller.connect(address)
"""


class Hostile:
    """Runs code as a job of a tenant."""

    def __init__(self, platform: PlatformUnderTest, client: ApiClient, folder: Path) -> None:
        self.platform, self.client, self.folder = platform, client, folder

    def submit(self, code: str) -> str:
        """Return the id of a job that runs it."""
        folder = self.folder / "hostile"
        folder.mkdir(exist_ok=True)
        (folder / "modelbox.yaml").write_text(json.dumps({"name": "hostile", "runs": PREAMBLE + code}))
        box = self.client.install_box(folder)["box"]
        return str(self.client.submit("/v1/jobs", {"box": box, "verb": "preprocess"})["id"])

    def wait_end(self, job_id: str) -> dict[str, Any]:
        """Return a job when it has ended."""
        own = PlatformUnderTest(self.client, self.platform.home, self.platform.running)
        return own.wait_end(job_id, PATIENCE_S)

    def run(self, code: str) -> dict[str, Any]:
        """Return the job that ran it, when it has ended."""
        return self.wait_end(self.submit(code))

    def said(self, code: str) -> Any:
        """Return what it found out."""
        done = self.run(code)
        assert done["state"] == "succeeded", done
        return done["result"]["said"]


class HostileBoxes:
    """Tests with a fixture of class scope: ``platform``, whose environment has ``ENVIRONMENT`` and that."""

    #: What there is of the home folder where a box sees it.
    SHOWN: ClassVar[frozenset[str]] = frozenset({"work"})
    #: Variables that a box has.
    VARIABLES: ClassVar[frozenset[str]] = frozenset(
        {
            "RDUKIT_BOX_GRPC", "PATH", "HOME", "LANG", "TMPDIR", "PYTHONUNBUFFERED", "OMP_NUM_THREADS", "RDUKIT_HOME",
            "RDUKIT_ISOLATION_MODE", "RDUKIT_COMPILE_WORKERS", "RDUKIT_LOG_LEVEL", "RDUKIT_KERNELS", "LC_CTYPE",
            "RDUKIT_TELEMETRY_TRACEPARENT", "RDUKIT_TELEMETRY_SPAN_FILE", "RDUKIT_TELEMETRY_OTLP_ENDPOINT",
        }
    )  # fmt: skip

    @pytest.fixture(scope="class")
    @staticmethod
    def mallory(platform: PlatformUnderTest) -> Iterator[ApiClient]:
        """Yield a tenant with a plain write token, beside the one that the platform begins with."""
        made = platform.client.post("/v1/tenants", {"name": "mallory"})
        token = platform.client.post(f"/v1/tenants/{made['id']}/tokens", {"scopes": ["read", "write"]})["token"]
        with ApiClient(platform.running["url"], token) as client:
            yield client

    @pytest.fixture
    def hostile(self, platform: PlatformUnderTest, mallory: ApiClient, tmp_path: Path) -> Hostile:
        return Hostile(platform, mallory, tmp_path)

    def test_files_of_the_platform_and_of_other_tenants_are_not_there(
        self, platform: PlatformUnderTest, hostile: Hostile
    ) -> None:
        home = platform.home
        made = platform.wait_end(platform.submit("preprocess")["id"], PATIENCE_S)
        data, steps = {"dataset": made["outputs"]["dataset"]}, {"steps": 1000, "step_s": 1}
        other = platform.submit("train", inputs=data, parameters=steps)["id"]
        platform.wait_job(other, lambda job: bool(job["progress"]), PATIENCE_S)
        assert (home / "work" / other / "in/dataset/manifest.json").exists()
        try:
            names = ["token", "db.sqlite", "artifacts", "run", "broker", "console.key", "logs", f"work/{other}"]
            places = [*(home / name for name in names), home / "work" / other / "in/dataset/manifest.json"]
            places += [path for path in (home / "tenants").glob("ten*") if path.name != tenant_id(platform, "mallory")]
            places += [key_path(home), Path("/etc/shadow"), Path("/dev/mem")]
            refused, listed, work = hostile.said(f"""
places = {list(map(str, places))!r}
said = [[attempt(lambda: read(path) if os.path.isfile(path) else os.listdir(path)) for path in places]]
said += [attempt(lambda: os.listdir({str(home)!r})), attempt(lambda: os.listdir({str(home / "work")!r}))]
""")
        finally:
            platform.client.post(f"/v1/jobs/{other}/cancel")
        assert set(refused) <= {"ENOENT", "EACCES"}, list(zip(places, refused, strict=True))
        assert set(listed) == self.SHOWN and len(work) == 1

    def test_no_key_of_the_installation_is_in_its_own_home(self, platform: PlatformUnderTest, hostile: Hostile) -> None:
        found = hostile.said("said = attempt(lambda: read(os.environ['RDUKIT_HOME'] + '/kernels/trust.key'))")
        assert found == "ENOENT" or bytes.fromhex(found) != key_path(platform.home).read_bytes()

    def test_sockets_of_the_platform_are_not_there_and_no_port_answers(
        self, platform: PlatformUnderTest, hostile: Hostile
    ) -> None:
        run = platform.home / "run"
        sockets = [str(path) for path in run.rglob("*") if path.is_socket()]
        assert {"valkey.sock", "snd.sock"} <= {Path(path).name for path in sockets}
        sockets += ["/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock"]
        port = int(platform.running["url"].rpartition(":")[2])
        code = f"said = [attempt(lambda: knock(address)) for address in [*{sockets!r}, ('127.0.0.1', {port})]]"
        with socket.create_server(("", 0)) as everywhere, socket.socket(socket.AF_UNIX) as abstract:
            abstract.bind(f"\0rdukit-{os.getpid()}")
            abstract.listen()
            code += f"\nsaid += [attempt(lambda: knock('\\0rdukit-{os.getpid()}'))]"
            code += f"\nsaid += [attempt(lambda: knock((address, {everywhere.getsockname()[1]})))"
            said = hostile.said(f"{code} for address in {own_addresses()!r}]")
        count = len(sockets)
        assert set(said[:count]) == {"ENOENT"}
        assert set(said[count:]) <= {"ECONNREFUSED", "ENETUNREACH"}

    def test_its_environment_has_nothing_of_the_workers_and_no_process_has(
        self, platform: PlatformUnderTest, hostile: Hostile
    ) -> None:
        worker, gateway = platform.pid_of("worker"), platform.pid_of("gateway")
        assert b"of the cloud" in Path(f"/proc/{worker}/environ").read_bytes()
        names, collector, environments, kills = hostile.said(f"""
pids = [name for name in os.listdir("/proc") if name.isdigit()]
said = [sorted(os.environ), os.environ.get("RDUKIT_TELEMETRY_OTLP_ENDPOINT", "")]
said += [[attempt(lambda: read(f"/proc/{{pid}}/environ")) for pid in pids]]
said += [[attempt(lambda: os.kill(pid, 9)) for pid in ({worker}, {gateway}, {os.getpid()})]]
""")
        assert set(names) <= self.VARIABLES, names
        assert collector == "", "its spans go into a file"
        assert not any(b"of the cloud".hex() in text for text in environments)
        assert kills == ["ESRCH"] * 3

    def test_packages_inputs_and_its_own_code_cannot_be_written(
        self, platform: PlatformUnderTest, hostile: Hostile
    ) -> None:
        home = platform.home
        said = hostile.said(f"""
import rdukit
(job,) = os.listdir({str(home / "work")!r})
work = {str(home / "work")!r} + "/" + job
places = [rdukit.__file__, sys.argv[0], os.__file__, work + "/box/modelbox.yaml", "/usr/bin/x", "/etc/x", "/proc/sys/x"]
said = [attempt(lambda: open(path, "ab")) for path in places]
said += [attempt(lambda: os.unlink(path)) for path in places[:4]]
said += [attempt(lambda: open(work + "/new", "x")), attempt(lambda: open(work + "/in/new", "x"))]
said += [attempt(lambda: os.mkdir({str(home)!r} + "/tenants/other"))]
said += [attempt(lambda: os.rename(work + "/out", work + "/in/out"))]
said += [attempt(lambda: os.mknod(output / "memory", 0o20666, os.makedev(1, 1)))]
said += [attempt(lambda: open("/proc/sys/kernel/core_pattern", "w")), attempt(lambda: open("/proc/sysrq-trigger", "w"))]
""")
        assert set(said) <= {"EROFS", "EACCES", "ENOENT", "EPERM", "EBUSY", "EXDEV"}, said

    def test_calls_that_administer_the_machine_are_refused(self, hostile: Hostile) -> None:
        said = hostile.said("""
machine = os.uname().machine
numbers = {"bpf": (321, 280), "perf_event_open": (298, 241), "add_key": (248, 217), "kexec_load": (246, 104),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "fsopen": (430, 430), "clock_adjtime": (305, 266),
    "reboot": (169, 142), "init_module": (175, 105), "iopl": (172, 172), "userfaultfd": (323, 282)}
zeros = [ctypes.c_long(0)] * 5
new_user = ctypes.c_long(0x10000000 | 17)
said = {name: attempt(lambda: system_call(number[machine == "aarch64"], *zeros)) for name, number in numbers.items()}
said |= {
    "mount": attempt(lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None)),
    "umount": attempt(lambda: call("umount2", b"/proc", 2)),
    "chroot": attempt(lambda: os.chroot("/tmp")),
    "unshare": attempt(lambda: call("unshare", 0x10000000)),
    "setns": attempt(lambda: call("setns", os.open("/proc/self/ns/net", 0), 0)),
    "clone": attempt(lambda: system_call(220 if machine == "aarch64" else 56, new_user, *zeros[:4])),
    "clock": attempt(lambda: time.clock_settime(time.CLOCK_REALTIME, 0)),
    "name": attempt(lambda: socket.sethostname("mine")),
    "root": attempt(lambda: os.setuid(0)),
    "packet": attempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    "raw": attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)),
    "vsock": attempt(lambda: socket.socket(socket.AF_VSOCK)),
    "io_uring": attempt(lambda: system_call(425, *zeros)),
    "kernel": attempt(lambda: socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)),
}
""")
        assert set(said.values()) <= {"EPERM", "EAFNOSUPPORT", "ENOSYS"}, said

    def test_what_it_uses_has_limits(self, hostile: Hostile) -> None:
        said = hostile.said("""
size = lambda path: (found := os.statvfs(path)).f_blocks * found.f_frsize
said = {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name))[1] for name in ("NOFILE", "CORE", "FSIZE")}
said |= {path: size(path) for path in ("/tmp", "/dev/shm")}
said["oom"] = int(open("/proc/self/oom_score_adj").read())
said["kept"] = {}
for top in ("/", "/var", "/run", "/var/tmp", "/var/lib", "/var/lib/rdukit", "/dev", "/dev/mqueue", "/home"):
    try:
        with open(top + "/kept", "x"):
            said["kept"][top] = size(top)
    except OSError:
        pass
said["sparse"] = attempt(lambda: os.truncate(os.open(output / "f", os.O_CREAT | os.O_RDWR), 1 << 40))
os.unlink(output / "f")
""")
        assert said["NOFILE"] <= 4096 and said["CORE"] == 0 and 0 < said["FSIZE"] <= 64 << 30, said
        assert 0 < said["/tmp"] <= 2 << 30 and 0 < said["/dev/shm"] <= 2 << 30, said
        assert said["oom"] >= 500 and said["sparse"] == "EFBIG", said
        assert all(bytes <= 2 << 30 for bytes in said["kept"].values()), "it is on a disk where nobody counts it"

    @pytest.mark.parametrize(
        ("code", "why"),
        [
            ("os.symlink('/etc/shadow', output / 'shadow')", "a symbolic link"),
            ("(output / 'f').write_text(''); os.link(output / 'f', output / 'g')", "a hard link"),
            ("os.mkfifo(output / 'pipe')", "a pipe"),
            ("knock_knock = socket.socket(socket.AF_UNIX); knock_knock.bind(str(output / 's'))", "a socket"),
            ("os.truncate(os.open(output / 'f', os.O_CREAT | os.O_RDWR), 1 << 34)", "bytes"),
            ("output = pathlib.Path(os.environ['RDUKIT_HOME'])", "expected paths inside"),
            ("output = output / '..' / '..' / 'in'", "expected paths inside"),
            ("os.symlink(os.environ['RDUKIT_HOME'], output / 'a'); output = output / 'a/kernels'", "a symbolic link"),
            ("open(os.fsencode(output) + b'/\\xff', 'w')", "not valid UTF-8"),
        ],
    )
    def test_an_output_that_is_more_than_files_and_folders_is_refused_and_in_the_audit_log(
        self, platform: PlatformUnderTest, hostile: Hostile, code: str, why: str
    ) -> None:
        done = hostile.run(code)
        assert (done["state"], done["error"]["code"]) == ("failed", "output-refused"), done
        assert why in done["error"]["message"] and len(done["attempts"]) == 1
        assert is_audited(platform, done, "output-refused")

    @pytest.mark.parametrize(
        "code",
        [
            "for n in range(300):\n    (output / str(n)).write_bytes(bytes(1 << 20))\ntime.sleep(600)",
            "for n in range(300):\n    pathlib.Path(str(n)).write_bytes(bytes(1 << 20))\ntime.sleep(600)",
            "d = os.open(output / 'gone', os.O_CREAT | os.O_RDWR); os.unlink(output / 'gone')\n"
            "for _ in range(300): os.write(d, bytes(1 << 20))\ntime.sleep(600)",
        ],
        ids=["outputs", "own folder", "deleted and open"],
    )
    def test_a_job_that_fills_the_disk_ends_and_says_so(
        self, platform: PlatformUnderTest, hostile: Hostile, code: str
    ) -> None:
        done = hostile.run(code)
        assert (done["state"], done["error"]["code"]) == ("failed", "disk-full"), done
        assert "worker.box_disk" in done["error"]["message"] and is_audited(platform, done, "disk-full")

    @pytest.mark.parametrize(
        ("code", "why"),
        [
            ("said = 'x' * (8 << 20)", "an event of more than 4194304 bytes"),
            pytest.param(
                "box.add('op-1', 'log', log='x' * (8 << 20))",
                "an event of more than 4194304 bytes",
                marks=pytest.mark.long,
            ),
            pytest.param(
                "for n in range(10_500): box.add('op-1', 'log', log='x' * (10 if n % 20 else 5_000))",
                "",
                marks=pytest.mark.long,
            ),
        ],
    )
    def test_a_box_that_talks_too_much_fills_neither_worker_nor_database(
        self, platform: PlatformUnderTest, hostile: Hostile, code: str, why: str
    ) -> None:
        find = "import gc\nbox = next(one for one in gc.get_objects() if type(one).__name__ == 'Box')\n"
        done = hostile.run(find + code)
        assert done["state"] == ("failed" if why else "succeeded") and why in str(done["error"]), done
        if not why:
            with sqlite3.connect(platform.home / "db.sqlite") as database:
                query = "select count(*), max(length(data)) from job_events where job_id = ? and kind = 'log'"
                count, longest = database.execute(query, [done["id"]]).fetchone()
            assert count == 10_000 and longest < 4_100

    def test_a_fork_bomb_ends_with_its_job_and_others_go_on(
        self, platform: PlatformUnderTest, hostile: Hostile
    ) -> None:
        made = hostile.said("""
made = 0
try:
    while made < 10_000:
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600); os._exit(0)
        made += 1
except OSError as error:
    said = [made, errno.errorcode[error.errno]]
""")
        assert made[0] < 100 and made[1] == "EAGAIN"
        assert platform.wait_end(platform.submit("preprocess")["id"], PATIENCE_S)["state"] == "succeeded"
        assert hostile.run("")["state"] == "succeeded"

    def test_folders_that_nobody_can_walk_are_removed_with_the_job(
        self, platform: PlatformUnderTest, hostile: Hostile
    ) -> None:
        done = hostile.run("""
os.chdir(output)
for _ in range(3000):
    os.mkdir("d"); os.chdir("d")
os.chmod(output / "d", 0)
""")
        assert done["state"] == "failed" and done["error"]["code"] in {"output-refused", "disk-full"}, done
        wait_until(lambda: not (platform.home / "work" / done["id"]).exists())


def tenant_id(platform: PlatformUnderTest, name: str) -> str:
    """Return the id of the tenant of that name."""
    return next(str(row["id"]) for row in platform.client.get("/v1/tenants")["tenants"] if row["name"] == name)


def is_audited(platform: PlatformUnderTest, job: dict[str, Any], reason: str) -> bool:
    """Return whether the log has that an attempt of the job was refused for this reason."""
    entries = platform.client.get("/v1/audit?action=attempt")["entries"]
    return any(entry["reason"] == reason and job["id"] in entry["target"] for entry in entries)


def own_addresses() -> list[str]:
    """Return the addresses of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ["127.0.0.1"]
        return ["127.0.0.1", str(probe.getsockname()[0])]
