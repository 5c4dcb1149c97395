"""Processes that compile at the same time share their kernels, also when some of them are killed in the middle."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from rdukit.pef.file import read_pef
from rdukit_compiler.backend.kernel_cache import BUILDING, LOCKS, SCRATCH, KernelCache, list_kernels
from support import shows
from support.graphs import LIBRARY_BYTES, fill, library_of

pytestmark = [shows("native", "engine"), pytest.mark.long]

PLENTY = 1 << 30


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Makes processes that have torch already: a second less each."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rdukit_compiler.backend.kernel_cache"])
    return context


def assert_whole(root: Path, max_bytes: int) -> None:
    cache = KernelCache(root, "v", max_bytes)
    files = list_kernels(root)
    assert sum(file.size_bytes for file in files) <= max_bytes
    for file in files:
        assert cache.find(file.path.stem) == library_of(file.path.stem)
    assert [path.name for path in (root / LOCKS).iterdir()] == [BUILDING]
    assert not list((root / SCRATCH).iterdir())


def test_six_processes_that_compile_the_same_kernels_build_each_once(
    processes: ForkServerContext, tmp_path: Path
) -> None:
    arguments = (tmp_path / "kernels", "abc", PLENTY, 0.2, tmp_path / "log")
    started = [processes.Process(target=fill, args=arguments) for _ in range(6)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0] * 6
    assert sorted((tmp_path / "log").read_text().split()) == ["a", "b", "c"]
    assert_whole(tmp_path / "kernels", PLENTY)


def test_kills_at_any_moment_leave_whole_files_and_hold_up_nobody(processes: ForkServerContext, tmp_path: Path) -> None:
    root, log = tmp_path / "kernels", tmp_path / "log"
    moments = random.Random(5)
    bound = 4 * LIBRARY_BYTES
    for kill in range(10):
        digests = "".join(moments.sample("abcdefgh", 4))
        killed = processes.Process(target=fill, args=(root, digests, bound, 0.02, log))
        other = processes.Process(target=fill, args=(root, digests[::-1], bound, 0.02, log))
        killed.start()
        other.start()
        killed.join(moments.uniform(0.0, 0.25))
        killed.kill()
        other.join(60.0)
        assert other.exitcode == 0, f"kill {kill}"
        killed.join()
    for half in root.rglob("*.part"):  # the last ones are too young to be swept
        os.utime(half, (1, 1))
    last = processes.Process(target=fill, args=(root, "ab", bound, 0.0, log))
    last.start()
    last.join()
    assert last.exitcode == 0
    assert_whole(root, bound)
    assert not list(root.rglob("*.part"))


#: Compiles one layer for inference: one kernel.
PROGRAM = """
import sys
import torch
from torch import nn
from sambaflow import samba

model = nn.Sequential(nn.Linear(5, 3), nn.Tanh())
samba.from_torch_model_(model)
inputs = (samba.randn(2, 5, name="input"),)
config = {"output_folder": sys.argv[1], "pef_name": "one", "inference": True, "log_level": "error"}
samba.session.compile(model, inputs, name="one", config_dict=config)
"""


def test_a_compile_goes_on_when_the_one_that_builds_its_kernel_is_killed(tmp_path: Path) -> None:
    script, root = tmp_path / "one.py", tmp_path / "home" / "kernels"
    script.write_text(PROGRAM)
    variables = os.environ | {
        "RDUKIT_HOME": str(tmp_path / "home"), "RDUKIT_KERNELS": "native", "OMP_NUM_THREADS": "1",
        "RDUKIT_COMPILE_WORKERS": "1", "RDUKIT_NODE": "private", "RDUKIT_COMPILE_ROUTES": "bf16=native,f32=blas",
    }  # fmt: skip

    def compile_in(folder: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(script), str(tmp_path / folder)], env=variables, cwd=tmp_path)

    first, second = compile_in("first"), compile_in("second")
    try:
        end = time.monotonic() + 300
        while not list(root.glob(f"{LOCKS}/*.lock")) or len(list(root.glob(f"{SCRATCH}/*"))) < 2:
            assert time.monotonic() < end, "both should compile, and one build"
            time.sleep(0.02)
        time.sleep(1.0)
        holders = Path("/proc/locks").read_text()
        killed, other = (first, second) if f" {first.pid} " in _sole(holders) else (second, first)
        killed.send_signal(signal.SIGKILL)
        assert other.wait(300) == 0
        assert killed.wait() == -signal.SIGKILL
    finally:
        for process in (first, second):
            process.kill()
            process.wait()
    done = "first" if other is first else "second"
    (library,) = read_pef(tmp_path / done / "one" / "one.pef").natives.values()
    (file,) = list_kernels(root)
    assert file.path.read_bytes().startswith(library)
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\nexit 1\n")
    compiler.chmod(0o755)
    variables["CXX"] = str(compiler)
    assert compile_in("third").wait(120) == 0
    assert not (tmp_path / "called").exists()
    assert list(read_pef(tmp_path / "third" / "one" / "one.pef").natives.values()) == [library]
    assert not list(root.rglob("*.part"))


def _sole(locks: str) -> str:
    """The lines of locks that have one holder."""
    return "\n".join(line for line in locks.splitlines() if "FLOCK" in line and "WRITE" in line)
