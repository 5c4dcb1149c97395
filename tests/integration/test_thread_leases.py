"""Programs compute with as many threads as their leases have cores: two on one node share the machine."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from rdukit.pef.file import write_pef
from rdukit.system.cpu import usable_cores
from support import shows
from support.node.daemons import RunningDaemon, environment, running_daemon
from support.pefs.examples import example_kernels, example_pef

pytestmark = shows("node")

#: Opens the PEF, says how many threads a large run would have, and stays until its stdin ends.
PROGRAM = """
import json, sys
import torch
from rdukit_runtime.application import open_application

seen = []

def build(graph):
    return lambda inputs, scalars: seen.append(torch.get_num_threads()) or [torch.zeros(()), torch.zeros(4, 2)]

before = torch.get_num_threads()
with open_application(sys.argv[1], "program", build=build) as application:
    figures = application.figures()
    application.run("main", (0,), {})
    said = [figures["threads"], figures["node"], figures["device"], seen, before == torch.get_num_threads()]
    print(json.dumps(said), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with running_daemon("TEST-1") as found:
        yield found


def pef_of(tiles: int, folder: Path, flops: int = 10**9) -> Path:
    """The example PEF for so many of the node's four tiles; its forward section claims so many FLOPs."""
    pef = replace(example_pef(), num_tiles=tiles)
    forward, step = pef.sections
    large = replace(forward, cost=replace(forward.cost, flops=flops))
    path = folder / f"{tiles}.pef"
    write_pef(path, replace(pef, sections=(large, step)), example_kernels(), {})
    return path


def started(stack: ExitStack, pef: Path, home: Path, **more: str) -> list[object]:
    """What a program says that runs until the stack ends."""
    environ = environment(home, **more)
    if "OMP_NUM_THREADS" not in more:
        del environ["OMP_NUM_THREADS"]
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(pef)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
    )
    assert process.stdin is not None and process.stdout is not None
    stack.callback(process.stdin.close)
    line = process.stdout.readline()
    assert line, "the program ended"
    found: list[object] = json.loads(line)
    return found


@pytest.mark.long
def test_two_programs_have_half_of_the_cores_each_and_one_alone_all(daemon: RunningDaemon, tmp_path: Path) -> None:
    half = max(1, usable_cores() // 2)
    with ExitStack() as stack:
        for _ in range(2):
            threads, node, device, seen, is_restored = started(stack, pef_of(2, tmp_path), daemon.home)
            assert (threads, node, device, seen, is_restored) == (half, "daemon", "cpu", [half], True)
    with ExitStack() as stack:
        threads, *_ = started(stack, pef_of(4, tmp_path), daemon.home)
        assert threads in {usable_cores(), usable_cores() // 2}, "half where cores have two hardware threads each"


def test_a_private_node_has_torchs_own_number_and_a_small_run_one_thread(tmp_path: Path) -> None:
    with ExitStack() as stack:
        threads, node, _, seen, is_restored = started(
            stack, pef_of(1, tmp_path, flops=1000), tmp_path / "home", RDUKIT_NODE="private"
        )
    assert threads in {usable_cores(), max(1, usable_cores() // 2)}
    assert (node, seen, is_restored) == ("private", [1], True)


@pytest.mark.long
@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "RDUKIT_ENGINE_THREADS"])
def test_a_choice_of_threads_wins_over_the_lease(name: str, daemon: RunningDaemon, tmp_path: Path) -> None:
    chosen = usable_cores()
    with ExitStack() as stack:
        threads, *_ = started(stack, pef_of(1, tmp_path), daemon.home, **{name: str(chosen)})
    assert threads == chosen
