"""A worker that builds kernels ends when its compile is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import shows

pytestmark = [shows("native"), pytest.mark.long]

COMPILE = """
import sys
from pathlib import Path
from rdukit_compiler.backend.kernel_cache import BuildPlace
from rdukit_compiler.backend.workers import Worker, start_worker_server
worker = Worker(start_worker_server(), BuildPlace(Path(sys.argv[1]), int(sys.argv[2])))
print("started", flush=True)
sys.stdin.read()
"""


def test_a_worker_ends_with_a_killed_compile_though_somebody_else_has_its_pipe(tmp_path: Path) -> None:
    life, held = os.pipe()
    os.set_inheritable(held, True)
    compile_ = subprocess.Popen(
        [sys.executable, "-c", COMPILE, str(tmp_path), str(held)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(held,),
    )  # fmt: skip
    os.close(held)
    assert compile_.stdout is not None and compile_.stdout.readline() == b"started\n"
    compile_.send_signal(signal.SIGKILL)
    compile_.communicate()
    assert os.read(life, 1) == b"", "the worker is gone"
    os.close(life)
