"""Lost and hanging ranks of groups of some ranks: they are named by their number in the launch, and so is the group."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from support import shows, wait_until
from support.forked import ForkedProgram, fork_python

pytestmark = shows("collectives", "lost-ranks")

#: Ranks 1 to 3 make a group; the last one is lost while the others call ``<operation>`` of ``<way>``.
PROGRAM: Final = """
import os, signal, sys, time
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
import sambaflow
from rdukit.errors import PeerLost
from rdukit_runtime.collectives.planes import collectives_of
from rdukit_runtime.process_group import join_process_group

way, operation, how, folder = sys.argv[1:]
rank, limit = int(os.environ["PMI_RANK"]), timedelta(seconds=3 if how == "hangs" else 60)
if way == "rdu":
    dist.init_process_group("rdu", init_method=f"file://{folder}/store", rank=rank, world_size=4, timeout=limit)
else:
    join_process_group(limit)
group = dist.new_group([1, 2, 3], timeout=limit)
if rank == 0:  # its store is needed until the group is made
    while not Path(folder, "ready").exists():
        time.sleep(0.05)
    sys.exit()
made, parts = torch.ones(40_000), [torch.empty(3) for _ in range(3)]
if way == "rdu":
    calls = {
        "all_reduce": lambda: dist.all_reduce(made, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_single(torch.empty(1), torch.ones(3), group=group),
        "all_gather": lambda: dist.all_gather(parts, torch.ones(3), group=group),
        "broadcast": lambda: dist.broadcast(made, 3, group=group),
        "barrier": lambda: dist.barrier(group=group),
        "recv": lambda: dist.recv(made, 3, group=group),
    }
else:
    plane = collectives_of(group)
    calls = {
        "all_reduce": lambda: plane.all_reduce([made], [made]),
        "reduce_scatter": lambda: plane.reduce_scatter(torch.ones(3), torch.empty(1)),
        "all_gather": lambda: plane.all_gather(torch.ones(3), torch.empty(3, 3)),
        "broadcast": lambda: plane.broadcast([made], 2),
        "barrier": lambda: plane.barrier(),
        "recv": lambda: plane.recv(made, 2),
    }
calls["barrier"]()
if rank == 3:
    Path(folder, "ready").touch()
    signal.pause()
try:
    calls[operation]()
except PeerLost as error:
    print(error.message, flush=True)
"""


@contextmanager
def ranks_of(
    way: str, operation: str, how: str, transport: str, folder: Path
) -> Iterator[list[tuple[ForkedProgram, Path]]]:  # fmt: skip
    """Four ranks; they are dead afterwards."""
    started = []
    for rank in range(4):
        told = folder / f"told{rank}"
        own = {"PMI_RANK": str(rank), "PMI_SIZE": "4", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
               "RDUKIT_DISTRIBUTED_TRANSPORT": transport}  # fmt: skip
        words = ["-c", PROGRAM, way, operation, how, str(folder)]
        with told.open("wb") as file:
            program = fork_python(words, {**os.environ, **own}, stdout=file.fileno(), stderr=file.fileno(),
                                  kind="sambaflow")  # fmt: skip
        started.append((program, told))
    try:
        yield started
    finally:
        for program, _ in started:
            program.kill()
            program.wait(60)


OPERATIONS: Final = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier", "recv")
SHORT: Final = {("plane", "all_reduce", "killed", "gloo"), ("rdu", "barrier", "killed", "auto")}


@pytest.mark.parametrize(
    ("way", "operation", "how", "transport"),
    [
        pytest.param(*case, marks=() if case in SHORT else pytest.mark.long)
        for way in ("plane", "rdu") for operation in OPERATIONS for how in ("killed", "hangs")
        for transport in ("auto", "gloo") if (case := (way, operation, how, transport))
    ],
)  # fmt: skip
def test_a_lost_rank_of_a_group_is_named_by_all_others(
    way: str, operation: str, how: str, transport: str, tmp_path: Path
) -> None:
    before = set(Path("/dev/shm").iterdir())
    with ranks_of(way, operation, how, transport, tmp_path) as ranks:
        wait_until((tmp_path / "ready").exists, 200)
        if how == "killed":
            ranks[3][0].send_signal(signal.SIGKILL)
        began = time.monotonic()
        for rank in (1, 2):
            program, told = ranks[rank]
            assert program.wait(50) == 0, told.read_text()  # killed: long before the limit
            text = told.read_text()
            said = "died or ended (" if how == "killed" else "did not answer in time, within 3 s ("
            assert f"of the group of ranks 1, 2, 3 {said}" in text, (text, time.monotonic() - began)
            named = text.partition(" of the group")[0]
            assert named == "rank 3" or (how == "killed" and named.startswith("ranks") and named.endswith(", 3")), text
            assert f"rank {rank} is in " in text
    assert not [path for path in set(Path("/dev/shm").iterdir()) - before if "rdukit" in path.name]
