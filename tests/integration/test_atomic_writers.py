"""A file that is written atomically: whole beside a writer and after one that is killed."""

import signal
import subprocess
import sys
from pathlib import Path

from support import shows

pytestmark = shows("operations")

#: Overwrites the file for ever, each time with one letter repeated; says so after each write.
WRITER = """
import sys
from pathlib import Path
from rdukit.files.atomic import write_atomic
path = Path(sys.argv[1])
for number in range(1_000_000):
    write_atomic(path, bytes([97 + number % 26]) * 300_000)
    print(number, flush=True)
"""


def test_a_writer_that_is_killed_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for seen in (1, 2, 4):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            for _ in range(seen):
                writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
        data = path.read_bytes()
        assert len(data) == 300_000
        assert len(set(data)) == 1


def test_a_reader_beside_a_writer_never_sees_a_half(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(20):
            writer.stdout.readline()
            data = path.read_bytes()
            assert len(data) == 300_000
            assert len(set(data)) == 1
        writer.kill()
