"""sntilestat, snddrstat, snpciestat and the live picture beside a real node daemon, also in a terminal."""

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from support import shows
from support.forked import run_python
from support.node.daemons import RunningDaemon, environment, running_daemon

pytestmark = shows("sntilestat", "snddrstat", "snpciestat", "node", "tools")

_TOP = ["-c", "from rdukit.cli import run_command; from rdukit_node.cli.top import top; run_command(top)"]
#: Makes the terminal the program's own, so that Ctrl-C becomes a signal, and goes on as the program.
_CLAIM_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
_OTHER_SCREEN, _BACK = b"\x1b[?1049h", b"\x1b[?1049l"
_MAX_S = 20.0


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with running_daemon("SN30-8") as running:
        yield running


def tool(name: str) -> list[str]:
    return ["-m", f"rdukit_node.cli.{name}"]


def run(daemon: RunningDaemon, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_python(arguments, environment(daemon.home))


@dataclass(frozen=True, slots=True)
class Terminal:
    """What a program wrote to a terminal, and its exit status."""

    output: bytes
    status: int


def in_terminal(daemon: RunningDaemon, arguments: list[str], until: bytes, keys: bytes = b"") -> Terminal:
    """Run in a terminal of 80 columns and 24 lines; type ``keys`` when the program has written ``until``."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", _CLAIM_TERMINAL, *arguments], stdin=slave, stdout=slave, stderr=slave,
        start_new_session=True, env=environment(daemon.home, TERM="xterm-256color"),
    )  # fmt: skip
    os.close(slave)
    output, end, typed = b"", time.monotonic() + _MAX_S, False
    try:
        while time.monotonic() < end:
            if select.select([master], [], [], 0.1)[0]:
                try:
                    data = os.read(master, 65536)
                except OSError:  # the last one closed the terminal
                    break
                if not data:
                    break
                output += data
            if until in output and not typed:
                typed = True
                os.write(master, keys)
        return Terminal(output, process.wait(timeout=_MAX_S))
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_all_tools_agree_about_an_idle_node_and_machines_get_one_document_a_sample(daemon: RunningDaemon) -> None:
    for name, key, number in (
        ("sntilestat", "tiles", 64),
        ("snddrstat", "channels", 64),
        ("snpciestat", "links", None),
    ):
        result = run(daemon, *tool(name), "--json", "-i", "0.05", "--count", "3")
        assert (result.returncode, result.stderr) == (0, "")
        documents = [json.loads(line) for line in result.stdout.splitlines()]
        assert len(documents) == 3
        assert all(document["tool"] == name and document["window_s"] > 0 for document in documents)
        assert number in (None, len(documents[0][key]))
        empty = run(daemon, *tool(name), "--json", "--skip-idle", "-i", "0.05")
        assert json.loads(empty.stdout)[key] == []


def test_a_holder_is_found_by_process_user_and_job(daemon: RunningDaemon) -> None:
    with daemon.connect() as holder:
        lease = holder.acquire("logreg", 4, 1 << 20, job="j7", command="python logreg.py run")
        for filters in (["-p", str(os.getpid())], ["--job", "j7"], []):
            result = run(daemon, *tool("sntilestat"), "--skip-idle", "-i", "0.05", *filters)
            mine = [line for line in result.stdout.splitlines() if line.endswith("python logreg.py run")]
            assert [line.split()[0] for line in mine] == [path.removeprefix("/NODE") for path in lease["tiles"]]
            assert all(line.split()[7] == str(os.getpid()) for line in mine)


def test_comma_separated_values_go_to_the_file_and_nothing_to_stdout(daemon: RunningDaemon) -> None:
    file = daemon.home / "tiles.csv"
    result = run(daemon, *tool("sntilestat"), "--csv", str(file), "-i", "0.05", "--count", "2")
    assert (result.returncode, result.stdout) == (0, "")
    lines = file.read_text().splitlines()
    assert len(lines) == 1 + 2 * 64
    assert lines[0].startswith("time,tile,idle,")


def test_a_broken_tile_is_marked_for_whoever_holds_it_and_its_neighbours_are_not() -> None:
    with running_daemon("TEST-1") as daemon, daemon.connect() as holder, daemon.connect() as admin:
        holder.acquire("logreg", 2, 1 << 20, command="python logreg.py run")
        lasting = next(
            row for row in admin.call("catalogue")["classes"] if row["component_kind"] == "TILE" and row["persists"]
        )
        path = "/NODE/XRDU_0/RDU_0/TILE_1"
        admin.call("inject", events=[{"class": lasting["name"], "component": path}])
        tiles = run(daemon, *tool("sntilestat"), "-i", "0.05").stdout.splitlines()[1:]
        assert [line.partition("[")[2].partition("]")[0] for line in tiles] == ["Fault", "Excluded", "", ""]
        picture = run(daemon, *_TOP, "--once").stdout
        assert "A▁ A! ·  ·" in picture and "FAULT" in picture and "/XRDU_0/RDU_0/TILE_1" in picture


def test_no_daemon_is_an_error_with_its_exit_status_and_valid_json(daemon: RunningDaemon) -> None:
    result = run(daemon, *tool("sntilestat"), "--json", "--socket", str(daemon.home / "nothing.sock"))
    assert result.returncode == 7
    assert json.loads(result.stdout)["error"]["code"] == "unavailable"


@pytest.mark.parametrize(("arguments", "sign"), [([*tool("sntilestat"), "-i", "0.1"], b"%idle"), (_TOP, b"XRDU_0")])
def test_a_live_screen_ends_cleanly_with_ctrl_c(daemon: RunningDaemon, arguments: list[str], sign: bytes) -> None:
    terminal = in_terminal(daemon, arguments, until=sign, keys=b"\x03")
    assert terminal.status == 0
    assert terminal.output.count(_OTHER_SCREEN) == terminal.output.count(_BACK) == 1
    assert b"Traceback" not in terminal.output


def test_a_counted_live_run_leaves_its_last_sample_on_the_screen(daemon: RunningDaemon) -> None:
    terminal = in_terminal(daemon, [*tool("sntilestat"), "-i", "0.1", "--count", "2"], until=_BACK)
    assert terminal.status == 0
    after = terminal.output.rpartition(_BACK)[2].decode()
    assert after.count("TILE_") == 64


def test_ctrl_c_before_the_last_counted_sample_is_an_interrupt(daemon: RunningDaemon) -> None:
    arguments = [*tool("sntilestat"), "-i", "0.1", "--count", "10000"]
    assert in_terminal(daemon, arguments, until=b"%idle", keys=b"\x03").status == 130


def test_the_picture_of_once_has_no_control_codes_and_every_tile(daemon: RunningDaemon) -> None:
    with daemon.connect() as holder:
        holder.acquire("logreg", 2, 1 << 20, job="j7")
        result = run(daemon, *_TOP, "--once", "--width", "100")
    assert result.returncode == 0
    assert "\x1b" not in result.stdout
    assert result.stdout.count("·") == 62
    assert any(line.startswith("A logreg") for line in result.stdout.splitlines())


def test_the_picture_waits_for_a_daemon_that_is_down(daemon: RunningDaemon) -> None:
    arguments = [*_TOP, "--socket", str(daemon.home / "nothing.sock")]
    terminal = in_terminal(daemon, arguments, until=b"trying again", keys=b"\x03")
    assert terminal.status == 0
    assert b"no node daemon answers" in terminal.output
