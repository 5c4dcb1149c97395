"""Process groups that are made again at one store, as under torchrun, whose agent serves one store for all of them."""

import os
import socket
from pathlib import Path

import pytest

from support import shows
from support.forked import fork_python

pytestmark = shows("collectives")

#: Three default groups one after the other; a wait of its own limit; and a group whose second member does not call.
PROGRAM = """
import sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
import sambaflow
from rdukit.errors import PeerLost

rank, port, limit = int(sys.argv[1]), int(sys.argv[2]), timedelta(seconds=60)
store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timeout=limit)
for _ in range(3):
    dist.init_process_group("rdu", store=store, rank=rank, world_size=2, timeout=limit)
    group, made = dist.new_group([0, 1], timeout=limit), torch.ones(3)
    dist.all_reduce(made, group=group)
    assert made.tolist() == [2, 2, 2]
    dist.barrier()
    del group
    if rank:
        time.sleep(0.2)  # the other one comes to the next group while this one's former entries are there
    dist.destroy_process_group()

dist.init_process_group("rdu", store=store, rank=rank, world_size=2, timeout=limit)
if rank == 0:
    work = dist.irecv(made, 1)
    try:
        work.wait(timedelta(seconds=0.2))
    except PeerLost as error:
        print(error.message, flush=True)
    try:
        dist.new_group([0, 1], timeout=timedelta(seconds=0.3))
    except PeerLost as error:
        print(error.message, flush=True)
store.set(f"end{rank}", "1")
store.wait(["end0", "end1"])
"""


@pytest.mark.long
def test_groups_are_made_again_at_one_store_and_members_that_do_not_come_are_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = []
    for rank in range(2):
        with (tmp_path / f"told{rank}").open("wb") as told:
            ranks.append(
                fork_python(
                    ["-c", PROGRAM, str(rank), str(port)],
                    {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                    stdout=told.fileno(), stderr=told.fileno(), kind="sambaflow",
                )
            )  # fmt: skip
    try:
        for rank, program in enumerate(ranks):
            assert program.wait(120) == 0, (tmp_path / f"told{rank}").read_text()
    finally:
        for program in ranks:
            program.kill()
    said = (tmp_path / "told0").read_text()
    assert "rank 1 of 2 did not answer in time, within 0.2 s (" in said
    assert "rank 1 of 2 did not come to new_group within 0.3 s; " in said
