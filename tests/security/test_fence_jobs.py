"""Hostile boxes that a tenant installed, as jobs of the real platform: what they reach for is not there."""

import json
import os
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rdukit
from rdukit.errors import NotFenced
from rdukit.fence.probe import what_holds
from rdukit.pef.trust import key_path
from rdukit.testing import wait_until
from rdukit_platform.cli.client import ApiClient
from rdukit_platform.testing import PlatformUnderTest, platform_under_test, short_folder

pytestmark = pytest.mark.skipif(not what_holds().holds, reason=f"no fence holds here: {what_holds().why}")

BOX = Path(__file__).parents[1] / "integration" / "platform_box.py"
ENVIRONMENT = {
    "RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_WORKER_BOX_DISK": str(64 << 20),
    "RDUKIT_WORKER_FENCE": "required", "RDUKIT_WORKER_FENCE_UIDS": "1800000000-1800000099",
    "RDUKIT_WORKER_BOX_PIDS": "100", "AWS_SECRET_ACCESS_KEY": "of the cloud",
}  # fmt: skip
PREAMBLE = """
import ctypes, errno, json, os, signal, socket, sys, time
def attempt(act):
    try:
        found = act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return found if isinstance(found, (str, int, list)) else "done"
def read(path):
    with open(path, "rb") as stream:
        return stream.read().hex()
def knock(address):
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as caller:
        caller.settimeout(3)
        caller.connect(address)
"""


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, BOX, ENVIRONMENT) as running:
        yield running


@pytest.fixture(scope="module")
def mallory(platform: PlatformUnderTest) -> Iterator[ApiClient]:
    """A tenant with a plain write token, beside the one that the platform begins with."""
    made = platform.client.post("/v1/tenants", {"name": "mallory"})
    token = platform.client.post(f"/v1/tenants/{made['id']}/tokens", {"scopes": ["read", "write"]})["token"]
    with ApiClient(platform.running["url"], token) as client:
        yield client


class Hostile:
    """Runs code as a job of the tenant."""

    def __init__(self, platform: PlatformUnderTest, client: ApiClient, folder: Path) -> None:
        self.platform, self.client, self.folder = platform, client, folder

    def run(self, code: str) -> dict[str, Any]:
        """The job that ran it, when it has ended."""
        folder = self.folder / "hostile"
        folder.mkdir(exist_ok=True)
        (folder / "modelbox.yaml").write_text(json.dumps({"name": "hostile", "runs": PREAMBLE + code}))
        box = self.client.install_box(folder)["box"]
        submitted = self.client.submit("/v1/jobs", {"box": box, "verb": "preprocess"})
        return PlatformUnderTest(self.client, self.platform.home, self.platform.running).wait_end(submitted["id"])

    def said(self, code: str) -> Any:
        """What it found out."""
        done = self.run(code)
        assert done["state"] == "succeeded", done
        return done["result"]["said"]


@pytest.fixture
def hostile(platform: PlatformUnderTest, mallory: ApiClient, tmp_path: Path) -> Hostile:
    return Hostile(platform, mallory, tmp_path)


def test_files_of_the_platform_and_of_other_tenants_are_not_there(
    platform: PlatformUnderTest, hostile: Hostile
) -> None:
    done = platform.wait_end(platform.submit("preprocess")["id"])
    assert done["state"] == "succeeded"
    home = platform.home
    places = [home / name for name in ("token", "db.sqlite", "artifacts", "run", "work", "broker", "console.key")]
    (other,) = [path for path in (home / "tenants").iterdir() if path.name not in {"users", hostile_id(platform)}]
    said = hostile.said(
        f"said = [attempt(lambda: read(path)) for path in {list(map(str, [*places, other, key_path(home)]))!r}]\n"
        f"said += [attempt(lambda: os.listdir({str(home)!r})), attempt(lambda: os.listdir({str(home / 'work')!r}))]"
    )
    *refused, listed, work = said
    assert {"EISDIR" if path.is_dir() else "ENOENT" for path in places} and set(refused) <= {"ENOENT", "EISDIR"}
    assert set(listed) == {"tenants", "work"} and len(work) == 1
    assert all(answer == "ENOENT" for path, answer in zip(places, refused, strict=False) if path.name != "work")


def hostile_id(platform: PlatformUnderTest) -> str:
    return next(row["id"] for row in platform.client.get("/v1/tenants")["tenants"] if row["name"] == "mallory")


def test_its_kernels_are_signed_with_a_key_that_only_its_own_boxes_trust(
    platform: PlatformUnderTest, hostile: Hostile
) -> None:
    found = hostile.said("said = read(os.environ['RDUKIT_HOME'] + '/kernels/trust.key')")
    own = key_path(platform.home).read_bytes()
    assert len(bytes.fromhex(found)) == len(own) and bytes.fromhex(found) != own


def test_sockets_of_the_platform_are_not_there_and_no_port_answers(
    platform: PlatformUnderTest, hostile: Hostile
) -> None:
    run = platform.home / "run"
    sockets = [str(path) for path in run.rglob("*") if path.is_socket()]
    assert {"valkey.sock", "snd.sock"} <= {Path(path).name for path in sockets}
    port = int(platform.running["url"].rpartition(":")[2])
    code = f"said = [attempt(lambda: knock(address)) for address in [*{sockets!r}, ('127.0.0.1', {port})]]"
    with socket.create_server(("", 0)) as everywhere:
        code += f"\nsaid += [attempt(lambda: knock((address, {everywhere.getsockname()[1]}))) for address in {own()!r}]"
        said = hostile.said(code)
    count = len(sockets)
    assert set(said[:count]) == {"ENOENT"}
    assert set(said[count:]) <= {"ECONNREFUSED", "ENETUNREACH"}


def own() -> list[str]:
    """Addresses of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ["127.0.0.1"]
        return ["127.0.0.1", str(probe.getsockname()[0])]


def test_its_environment_has_nothing_of_the_workers_and_no_process_has(
    platform: PlatformUnderTest, hostile: Hostile
) -> None:
    worker, gateway = platform.pid_of("worker"), platform.pid_of("gateway")
    assert b"of the cloud" in Path(f"/proc/{worker}/environ").read_bytes()
    said = hostile.said(f"""
pids = [name for name in os.listdir("/proc") if name.isdigit()]
said = [sorted(os.environ), [attempt(lambda: read(f"/proc/{{pid}}/environ")) for pid in pids]]
said += [[attempt(lambda: os.kill(pid, 9)) for pid in ({worker}, {gateway}, {os.getpid()})]]
""")
    names, environments, kills = said
    assert set(names) <= {
        "PATH", "HOME", "LANG", "TMPDIR", "PYTHONUNBUFFERED", "OMP_NUM_THREADS", "RDUKIT_HOME", "RDUKIT_ISOLATION_MODE",
        "RDUKIT_LOG_LEVEL", "RDUKIT_KERNELS", "LC_CTYPE",
    }, names  # fmt: skip
    assert not any(b"of the cloud".hex() in text for text in environments)
    assert kills == ["ESRCH"] * 3


def test_packages_inputs_and_its_own_code_cannot_be_written(platform: PlatformUnderTest, hostile: Hostile) -> None:
    said = hostile.said(f"""
home = os.path.dirname(os.path.dirname(os.environ["RDUKIT_HOME"]))
(job,) = os.listdir(home + "/work")
places = [{rdukit.__file__!r}, {str(BOX)!r}, os.__file__, f"{{home}}/work/{{job}}/box/modelbox.yaml", "/usr/bin/x"]
said = [attempt(lambda: open(path, "ab")) for path in places]
said += [attempt(lambda: os.unlink(path)) for path in places[:4]]
said += [attempt(lambda: open(f"{{home}}/work/{{job}}/new", "x")), attempt(lambda: os.mkdir(home + "/tenants/other"))]
""")
    assert set(said) <= {"EROFS", "EACCES", "ENOENT", "EPERM"} and "done" not in said


def test_two_tenants_have_two_users_and_a_tenant_always_the_same(platform: PlatformUnderTest, hostile: Hostile) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give tenants users of their own")
    first, again = (hostile.said("said = os.getuid()") for _ in range(2))
    assert first == again and 1_800_000_000 <= first < 1_800_000_100
    other = Hostile(platform, platform.client, hostile.folder).said("said = os.getuid()")
    assert other not in {first, 0}


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("os.symlink('/etc/shadow', output / 'shadow')", "a symbolic link"),
        ("(output / 'f').write_text(''); os.link(output / 'f', output / 'g')", "a hard link"),
        ("os.mkfifo(output / 'pipe')", "a pipe"),
        ("knock_knock = socket.socket(socket.AF_UNIX); knock_knock.bind(str(output / 's'))", "a socket"),
        ("os.truncate(os.open(output / 'f', os.O_CREAT | os.O_RDWR), 1 << 34)", "bytes"),
        ("import pathlib; output = pathlib.Path(os.environ['RDUKIT_HOME'])", "legal are paths inside"),
        ("import pathlib; output = output / '..' / '..' / 'in'", "legal are paths inside"),
        ("os.symlink(os.environ['RDUKIT_HOME'], output / 'a'); output = output / 'a' / 'kernels'", "a symbolic link"),
        ("open(os.fsencode(output) + b'/\\xff', 'w')", "no name in UTF-8"),
    ],
)
def test_an_output_that_is_more_than_files_and_folders_is_refused_and_in_the_audit_log(
    platform: PlatformUnderTest, hostile: Hostile, code: str, why: str
) -> None:
    done = hostile.run(code)
    assert (done["state"], done["error"]["code"]) == ("failed", "output-refused"), done
    assert why in done["error"]["message"] and len(done["attempts"]) == 1
    entries = platform.client.get("/v1/audit?action=attempt")["entries"]
    assert any(entry["reason"] == "output-refused" and done["id"] in entry["target"] for entry in entries), entries


def test_a_job_that_fills_the_disk_ends_and_says_so(hostile: Hostile) -> None:
    done = hostile.run(
        "n = 0\nwhile True:\n    n += 1; (output / str(n)).write_bytes(bytes(1 << 20)); time.sleep(0.001)"
    )
    assert (done["state"], done["error"]["code"]) == ("failed", "disk-full"), done
    assert "worker.box_disk" in done["error"]["message"]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("box.add('op-1', 'log', log='x' * (8 << 20))", "an event of more than 4194304 bytes"),
        ("said = 'x' * (8 << 20)", "an event of more than 4194304 bytes"),
        ("for n in range(12_000): box.add('op-1', 'log', log='x' * 5_000)", ""),
    ],
)
def test_a_box_that_talks_too_much_fills_neither_worker_nor_database(
    platform: PlatformUnderTest, hostile: Hostile, code: str, why: str
) -> None:
    find = "import gc\nbox = next(one for one in gc.get_objects() if type(one).__name__ == 'Box')\n"
    done = hostile.run(find + code)
    assert done["state"] == ("failed" if why else "succeeded") and why in str(done["error"]), done
    if not why:
        with sqlite3.connect(platform.home / "db.sqlite") as database:
            query = "select count(*), max(length(data)) from job_events where job_id = ? and kind = 'log'"
            count, longest = database.execute(query, [done["id"]]).fetchone()
        assert count == 10_000 and longest < 4_100


def test_a_fork_bomb_ends_with_its_job_and_others_go_on(platform: PlatformUnderTest, hostile: Hostile) -> None:
    made = hostile.said("""
made = 0
try:
    while made < 10_000:
        if os.fork() == 0:
            time.sleep(600); os._exit(0)
        made += 1
except OSError as error:
    said = [made, errno.errorcode[error.errno]]
""")
    assert made[0] < 100 and made[1] == "EAGAIN"
    assert platform.wait_end(platform.submit("preprocess")["id"])["state"] == "succeeded"
    assert hostile.run("")["state"] == "succeeded"


def test_a_second_tenant_is_refused_where_boxes_are_not_fenced() -> None:
    with short_folder() as home, platform_under_test(home, BOX, {"RDUKIT_WORKER_FENCE": "off"}) as platform:
        assert platform.wait_end(platform.submit("preprocess")["id"])["state"] == "succeeded"
        with pytest.raises(NotFenced, match=r"one tenant only.*worker\.fence is off"):
            platform.client.post("/v1/tenants", {"name": "second"})
        with sqlite3.connect(home / "db.sqlite") as database:
            # As an administrator of the database can, or one who switched the fence off afterwards.
            database.execute("insert into tenants (id, name, created_at) values ('ten_x', 'second', 0)")
        done = platform.wait_end(platform.submit("preprocess")["id"])
        assert (done["state"], done["error"]["code"]) == ("failed", "not-fenced")
        assert "there are 2 tenants" in done["error"]["message"] and len(done["attempts"]) == 1
        entries = platform.client.get("/v1/audit?action=attempt")["entries"]
        assert any(entry["reason"] == "not-fenced" for entry in entries), entries


def test_folders_that_nobody_can_walk_are_removed_with_the_job(platform: PlatformUnderTest, hostile: Hostile) -> None:
    done = hostile.run("""
os.chdir(output)
for _ in range(3000):
    os.mkdir("d"); os.chdir("d")
os.chmod(output / "d", 0)
""")
    assert done["state"] == "failed" and done["error"]["code"] in {"output-refused", "disk-full"}, done
    wait_until(lambda: not (platform.home / "work" / done["id"]).exists())
