"""The vendor's places under a prefix: made, found by tools and containers, taken away again."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit.hardware import find_node
from rdukit_node.daemon.run import WATCHDOG, notify_ready, watchdog
from rdukit_node.install.install import MANIFEST, install, read_manifest, uninstall
from rdukit_node.install.plan import CONFIG, PYTHON_PACKAGES, TOOLS, InstallPlan, PlannedFile, plan_installation
from rdukit_node.snml.client import SnmlClient
from support import shows
from support.node.daemons import environment

pytestmark = shows("node", "snml", "snfadm")

#: The container line of the runtime reference, 8.1: what is bound, below the prefix.
BINDS = (
    "dev/hugepages",
    "opt/sambaflow/runtime",
    "opt/sambaflow/pef",
    "var/lib/sambaflow/ccl/ccl_config.db",
    *(f"{PYTHON_PACKAGES}/{name}" for name in ("pysnml", "pysnrdureset", "pysnrdutools", "sambaruntime")),
)
TARGET = find_node("SN10-8")


@pytest.fixture
def root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="root-", dir="/tmp"))
    yield folder / "r"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def plan(root: Path) -> InstallPlan:
    return plan_installation(root, Path(sys.executable), TARGET)


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_a_second_installation_changes_nothing_and_removal_leaves_nothing(root: Path, plan: InstallPlan) -> None:
    assert set(install(root, plan).written) == set(plan.files)
    before = tree(root)
    again = install(root, plan)
    assert (again.written, again.removed, again.kept) == ([], [], [])
    assert tree(root) == before
    removed = uninstall(root)
    assert removed.kept == []
    assert tree(root) == {}
    with pytest.raises(NotFound, match=MANIFEST):
        uninstall(root)


def test_every_planned_command_is_executable_and_every_path_of_the_bind_list_exists(
    root: Path, plan: InstallPlan
) -> None:
    install(root, plan)
    assert all((root / path).exists() for path in BINDS)
    for tool in (*TOOLS, "opt/sambaflow/bin/snd"):
        assert os.access(root / tool, os.X_OK), tool
    assert (root / "var/log/sambaflow/runtime").stat().st_mode & 0o7777 == 0o1777


def test_somebody_else_s_file_is_never_touched_and_nothing_is_written_then(root: Path, plan: InstallPlan) -> None:
    foreign = root / "opt/sambaflow/bin/snd"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("theirs")
    link = root / "opt/sambaflow/bin/snfadm"
    link.symlink_to("/bin/true")
    with pytest.raises(Conflict, match="choose another --root") as caught:
        install(root, plan)
    assert caught.value.detail["files"] == ["opt/sambaflow/bin/snd", "opt/sambaflow/bin/snfadm"]
    assert foreign.read_text() == "theirs"
    assert {name for name, content in tree(root).items() if content is not None} == {
        "opt/sambaflow/bin/snd",
        "opt/sambaflow/bin/snfadm",
    }


def test_removal_keeps_what_was_changed_or_added_since(root: Path, plan: InstallPlan) -> None:
    install(root, plan)
    (root / CONFIG).write_text("platform: SN30-8\n")
    log = root / "var/log/sambaflow/runtime/sn.log"
    log.write_text("a line\n")
    assert install(root, plan).kept == [CONFIG]
    removed = uninstall(root)
    assert CONFIG in removed.kept and "var/log/sambaflow/runtime" in removed.kept
    assert {name for name, content in tree(root).items() if content is not None} == {
        CONFIG,
        "var/log/sambaflow/runtime/sn.log",
    }


def test_another_platform_and_a_shorter_plan_replace_what_was_ours(root: Path, plan: InstallPlan) -> None:
    former = {"opt/sambaflow/old": b"gone in the next version", "opt/sambaflow/runtime/VERSION": b"0"}
    old = InstallPlan({**plan.files, **{name: PlannedFile(content) for name, content in former.items()}}, plan.folders)
    install(root, old)
    changes = install(root, plan_installation(root, Path(sys.executable), find_node("SN30-8")))
    assert "opt/sambaflow/runtime/VERSION" in changes.written
    assert changes.removed == ["opt/sambaflow/old"]
    manifest = read_manifest(root)
    assert manifest is not None and set(manifest.files) == set(plan.files)


def test_a_manifest_that_points_outside_is_not_followed(root: Path, plan: InstallPlan, tmp_path: Path) -> None:
    install(root, plan)
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    manifest = json.loads((root / MANIFEST).read_text())
    for name in (str(victim), "../../victim"):
        (root / MANIFEST).write_text(json.dumps({**manifest, "files": {name: "0" * 64}}))
        with pytest.raises(InvalidArgument, match="outside"):
            uninstall(root)
    (root / MANIFEST).write_text("{")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        install(root, plan)
    assert victim.exists()


def test_the_messages_for_containers_need_no_rdukit(root: Path, plan: InstallPlan) -> None:
    install(root, plan)
    program = (
        "import sys; sys.modules['rdukit'] = None\n"
        "from pysnml import snml_rpc_pb2, snml_rpc_pb2_grpc\n"
        "print(snml_rpc_pb2_grpc.SNMLRPCStub.__name__, snml_rpc_pb2.RDU_PENDING)"
    )
    variables = {**os.environ, "PYTHONPATH": str(root / PYTHON_PACKAGES)}
    ran = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=False)
    assert ran.stdout.split() == ["SNMLRPCStub", "1"], ran.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize(("unit", "most"), [("snd.service", 30), ("sambanova_exporter.service", 20)])
def test_systemd_takes_the_units_and_finds_them_hardened(root: Path, plan: InstallPlan, unit: str, most: int) -> None:
    install(root, plan)
    path = root / "etc/systemd/system" / unit
    verified = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--offline=yes", f"--threshold={most}", "--no-pager", path]
    judged = subprocess.run(command, capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", ["plain", "@abstract"])
def test_the_manager_hears_that_the_daemon_is_ready(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"@rdukit-{os.getpid()}" if name.startswith("@") else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address.replace("@", "\0"))
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        assert notify_ready("SN30-8,\n64 tiles")
        lines = manager.recv(4096).decode().splitlines()
    assert lines == ["READY=1", f"MAINPID={os.getpid()}", "STATUS=SN30-8, 64 tiles"]


def test_the_watchdog_is_told_nothing_while_nobody_answers(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(0.5)
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"}
        with watchdog(tmp_path / "snd.sock", environ), pytest.raises(TimeoutError):
            manager.recv(64)


def test_the_installed_daemon_serves_its_prefix_as_a_service_and_through_the_bind_list(
    root: Path, plan: InstallPlan
) -> None:
    install(root, plan)
    notify = root.parent / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(notify))
        manager.settimeout(30)
        variables = environment(root.parent, NOTIFY_SOCKET=str(notify), WATCHDOG_USEC="400000", RDUKIT_SNML_PORT="-1")
        daemon = subprocess.Popen([root / "opt/sambaflow/bin/snd"], env=variables)
        try:
            assert manager.recv(4096).startswith(b"READY=1\n")
            assert manager.recv(4096).decode() == WATCHDOG
            with SnmlClient(str(root / "var/snml.sock")) as client:
                assert client.ask("GetSystemPlatformInfo").platform_name == "DataScale SN10-8"
            listed = subprocess.run(
                [root / "opt/sambaflow/bin/snfadm", "-l", "inventory"],
                env=environment(root.parent), capture_output=True, text=True, check=True,
            )  # fmt: skip
            assert listed.stdout.splitlines()[0].startswith("/NODE/XRDU_0/RDU_0 | ")
            assert (root / "run/sambaflow/admin.token").stat().st_mode & 0o777 == 0o600
            assert (root / "var/lib/sambaflow/snfm/snfm.db").is_file()
            assert (root / "run/sambaflow/snd.sock").stat().st_mode & 0o777 == 0o666
            daemon.terminate()
            deadline = time.monotonic() + 60
            while (heard := manager.recv(4096)) == WATCHDOG.encode():
                assert time.monotonic() < deadline
            assert heard == b"STOPPING=1"
            assert daemon.wait(15) == 0
        finally:
            daemon.kill()
            daemon.wait()
    assert not (root / "var/snml.sock").exists()
