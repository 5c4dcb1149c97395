"""Many processes write and rotate one log at once."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from rdukit_node.logs.lines import parse_line
from support import shows
from support.helpers import wait_until

pytestmark = shows("isolation")

PROCESSES, LINES = 8, 400

WRITER = """
import os, sys
from pathlib import Path
from rdukit_node.logs.files import ApplicationLog
from rdukit_node.logs.lines import LogLevel
from rdukit_node.logs.rotated import LogFile
# Small files, and enough of them that none is dropped.
file = LogFile(Path(sys.argv[1]), max_bytes=8_000, keep=500, patience_s=60.0)
log = ApplicationLog("writer", file, LogLevel.NOTICE)
log.notice("start", sys.argv[2])
sys.stdin.read()  # until all are ready
if os.fork() == 0:  # and one of each pair is a fork that inherited an open file
    sys.argv[2] += "-fork"
for number in range(int(sys.argv[3])):
    log.notice("work", f"{sys.argv[2]} {number} " + "x" * (number % 90))
"""


def test_no_line_is_lost_or_torn_when_many_processes_write_and_rotate(tmp_path: Path) -> None:
    path = tmp_path / "logs/sn.log"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), f"writer{number}", str(LINES)],
            stdin=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for number in range(PROCESSES // 2)
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()
    for writer in writers:
        assert writer.stderr is not None
        assert writer.stderr.read() == b""  # ends when the fork has ended as well
        writer.stderr.close()
        assert writer.wait(60) == 0
    files = list(path.parent.iterdir())
    assert len(files) > 10
    assert {file.name for file in files} == {"sn.log", *(f"sn.log.{number}" for number in range(1, len(files)))}
    written: Counter[str] = Counter()
    for file in files:
        assert file.stat().st_size < 8_000 + 300
        for line in file.read_text().splitlines():
            parsed = parse_line(line)
            assert parsed is not None, (file, line)
            if parsed.function == "work":
                name, number, filling = (f"{parsed.text} ").split(" ")[:3]
                assert len(filling) == int(number) % 90
                written[f"{name} {number}"] += 1
    names = [f"writer{number}{suffix}" for number in range(PROCESSES // 2) for suffix in ("", "-fork")]
    assert written == {f"{name} {number}": 1 for name in names for number in range(LINES)}


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # not there yet, or being rotated
        return 0


def test_a_log_survives_writers_that_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "sn.log"
    command = [sys.executable, "-c", WRITER, str(path), "killed", "1000000"]
    for _ in range(3):
        writer = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert writer.stdin is not None
        writer.stdin.close()
        try:
            wait_until(lambda: size_of(path) > 2_000)
        finally:
            os.killpg(writer.pid, 9)
            writer.wait(30)
    # Captured output ends when the fork has ended as well.
    subprocess.run([*command[:-2], "last", "5"], check=True, stdin=subprocess.DEVNULL, capture_output=True)
    lines = [line for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert all(parse_line(line) for line in lines)
    assert sum("work: last" in line and " 4 " in line for line in lines) == 2
