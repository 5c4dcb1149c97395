"""What ``rdukit doctor`` concludes from what it finds on the host."""

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from rdukit.cli.status import PartStatus
from rdukit.doctor.cli import Finding, FindingLevel, exit_status, in_order, worst_of
from rdukit.doctor.host import above_findings, disk_finding, home_finding, part_finding, secret_findings
from rdukit.files.home import Folder

OURS, THEIRS = 1000, 1001
HOME = Path("/srv/home")
RDUKIT = Path(sys.executable).with_name("rdukit")


def folder(owner: int, mode: int) -> Folder:
    return Folder(owner, mode, frozenset())


@pytest.mark.parametrize(
    ("found", "level", "todo"),
    [
        (None, FindingLevel.GOOD, ""),
        (folder(OURS, 0o700), FindingLevel.GOOD, ""),
        (folder(OURS, 0o755), FindingLevel.BAD, "chmod 700 /srv/home"),
        (folder(0, 0o700), FindingLevel.GOOD, ""),
        (folder(0, 0o777), FindingLevel.BAD, "chmod 700 /srv/home"),
        (folder(THEIRS, 0o700), FindingLevel.BAD, "set RDUKIT_HOME to a folder of your own"),
    ],
)
def test_a_home_folder_is_private_or_there_is_something_to_do(
    found: Folder | None, level: FindingLevel, todo: str
) -> None:
    finding = home_finding(HOME, found, OURS)
    assert (finding.level, finding.todo) == (level, todo)


@pytest.mark.parametrize(
    ("above", "level"),
    [
        (folder(0, 0o755), FindingLevel.GOOD),
        (folder(0, 0o1777), FindingLevel.GOOD),
        (folder(OURS, 0o755), FindingLevel.GOOD),
        (folder(0, 0o777), FindingLevel.BAD),
        (folder(OURS, 0o775), FindingLevel.BAD),
        (folder(THEIRS, 0o755), FindingLevel.BAD),
    ],
)
def test_who_may_rename_the_home_folder_may_replace_it(above: Folder, level: FindingLevel) -> None:
    assert worst_of(above_findings([(Path("/srv"), above), (Path("/"), folder(0, 0o755))], OURS)) is level


def test_a_secret_that_others_may_read_is_named() -> None:
    (finding,) = secret_findings([(HOME / "token", 0o600), (HOME / "console.key", 0o640), (HOME / "db.sqlite", None)])
    assert (finding.level, finding.todo) == (FindingLevel.BAD, "chmod 600 /srv/home/console.key")


def test_little_room_is_a_warning_and_none_is_bad() -> None:
    assert disk_finding(HOME, 1 << 20).level is FindingLevel.BAD
    assert disk_finding(HOME, 17 << 20).level is FindingLevel.WARN
    assert disk_finding(HOME, 1 << 40).level is FindingLevel.GOOD


@pytest.mark.parametrize(
    ("state", "level"),
    [
        ("running", FindingLevel.GOOD),
        ("stopped", FindingLevel.GOOD),
        ("starting", FindingLevel.WARN),
        ("degraded", FindingLevel.BAD),
        ("unknown", FindingLevel.UNKNOWN),
    ],
)
def test_a_part_that_does_not_serve_is_found_with_its_log(state: str, level: FindingLevel) -> None:
    found = part_finding(PartStatus("platform", state, "as it is"), HOME)
    assert (found.check, found.level, found.what) == ("platform.state", level, "as it is")
    assert ("/srv/home/logs" in found.todo) == (level is not FindingLevel.GOOD)


def test_the_worst_comes_first_and_decides_the_exit_status() -> None:
    levels = [FindingLevel.GOOD, FindingLevel.BAD, FindingLevel.WARN, FindingLevel.UNKNOWN]
    findings = [Finding(str(level), level, "") for level in levels]
    assert [each.level for each in in_order(findings)] == [
        FindingLevel.BAD,
        FindingLevel.WARN,
        FindingLevel.UNKNOWN,
        FindingLevel.GOOD,
    ]
    assert worst_of([]) is FindingLevel.GOOD
    assert [exit_status(level, is_strict=False) for level in levels] == [0, 1, 0, 0]
    assert [exit_status(level, is_strict=True) for level in levels] == [0, 1, 1, 1]


def doctor(home: Path, *arguments: str, **environment: str) -> tuple[int, dict[str, dict[str, str]]]:
    done = subprocess.run(
        [RDUKIT, "doctor", "--json", *arguments], capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "RDUKIT_HOME": str(home), **environment},
    )  # fmt: skip
    found = json.loads(done.stdout)["findings"]
    return done.returncode, {each["check"]: each for each in found}


def serve_otherwise(listener: socket.socket) -> None:
    """Answer all requests as a server of something else."""
    with suppress(OSError):
        while True:
            with listener.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nhello")


def test_the_command_finds_what_is_wrong_and_changes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    status, good = doctor(home, "--security")
    assert status == 0
    assert not home.exists()
    assert {each["topic"] for each in good.values()} == {"security"}
    assert {"home.mode", "home.above", "fence", "gateway.tls", "broker.password", "box.tokens"} <= good.keys()
    home.mkdir(mode=0o700)
    (home / "token").write_text("x")
    (home / "token").chmod(0o644)
    status, bad = doctor(
        home, RDUKIT_GATEWAY_HOST="0.0.0.0", RDUKIT_BROKER_URL="redis://broker:6379/0", RDUKIT_BOX_HOSTS="*",
        RDUKIT_DATABASE_PASSWORD="rdukit",
    )  # fmt: skip
    assert status == 1
    wrong = {check for check, each in bad.items() if each["level"] == "bad"}
    assert {"home.secrets", "gateway.tls", "broker.password", "box.tokens", "compose.password"} <= wrong
    assert all(bad[check]["todo"] for check in wrong)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        threading.Thread(target=serve_otherwise, args=(other,)).start()
        nowhere = {
            "RDUKIT_BROKER_URL": "redis://:a@127.0.0.1:1/0",
            "RDUKIT_DATABASE_URL": "postgresql://u:p@127.0.0.1:1/x",
        }
        status, away = doctor(home, RDUKIT_GATEWAY_PORT=port, **nowhere)
        other.shutdown(socket.SHUT_RDWR)
    assert status == 1
    for check, words in (
        ("broker.state", "broker.url"),
        ("database.state", "database.url"),
        ("gateway.port", "--port"),
    ):
        assert (away[check]["level"], words in away[check]["todo"]) == ("bad", True), away[check]
    assert away["node.state"]["level"] == "good", "none was started"
    assert (home / "token").stat().st_mode & 0o777 == 0o644
