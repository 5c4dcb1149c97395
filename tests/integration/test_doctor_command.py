"""``rdukit doctor`` as a command: it finds what is wrong and changes nothing."""

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from support import shows

pytestmark = shows("doctor", "security", "security-check")

RDUKIT = Path(sys.executable).with_name("rdukit")


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
