"""Collectives of ranks that are processes: bits of the rank-order sum, refusals on every rank, and a killed rank."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from support import shows

pytestmark = shows("node", "collectives")

#: Joins ``size`` ranks; ``body`` has ``rank``, ``size`` and both data planes of groups of ranks.
HEAD: Final = """
import os, signal, sys
from datetime import timedelta
from functools import cache
import torch
import torch.distributed as dist
from rdukit.errors import InvalidArgument, PeerLost
from rdukit_runtime.collectives.gloo import Gloo
from rdukit_runtime.collectives.planes import collectives_of
from rdukit_runtime.collectives.shared_memory import SharedMemory
from rdukit_runtime.collectives.sums import Reduction
from rdukit_runtime.process_group import join_process_group

limit = os.environ.get("LIMIT_S")
launch = join_process_group(limit and timedelta(seconds=float(limit)))
rank, size = launch.rank, launch.world_size

def drawn(of_rank, count, dtype):
    return kept_drawn(of_rank, count, dtype).clone()

@cache
def kept_drawn(of_rank, count, dtype):
    made = torch.Generator().manual_seed(of_rank)
    if not dtype.is_floating_point:
        return torch.randint(-(2**62), 2**62, (count,), generator=made).to(dtype)
    powers = torch.randint(-3, 4, (count,), generator=made)
    return (torch.randn(count, generator=made) * 10.0**powers).to(dtype)

def rank_order(parts, reduction):
    dtype = parts[0].dtype
    total = parts[0].to(torch.float32 if dtype == torch.bfloat16 else dtype)
    for part in parts[1:]:
        total = total + part.to(total.dtype)
    return (total / len(parts) if reduction is Reduction.MEAN else total).to(dtype)
"""

SUMS: Final = (
    HEAD
    + """
COUNTS = (0, 1, 3, 1000, 20_001)
MORE_THAN_A_SLOT = 4_200_003
for members in ([0, 1], [0, 1, 2], [0, 1, 2, 3]):
    group = dist.new_group(members)
    if rank not in members:
        continue
    n = len(members)
    planes = [collectives_of(group), Gloo(group)]
    assert isinstance(planes[0], SharedMemory) and collectives_of(group) is planes[0]
    for plane in planes:
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int64):
            reductions = (Reduction.SUM, Reduction.MEAN) if dtype.is_floating_point else (Reduction.SUM,)
            for reduction in reductions:
                is_long = plane is planes[0] and n == 3 and (dtype, reduction) == (torch.float32, Reduction.MEAN)
                counts = (*COUNTS, MORE_THAN_A_SLOT) if is_long else COUNTS
                expected = [rank_order([drawn(r, c, dtype) for r in range(n)], reduction) for c in counts]
                alone = [drawn(rank, c, dtype) for c in counts]
                together = [torch.full_like(t, 7) for t in alone]
                plane.all_reduce(alone, together, reduction)
                assert all(map(torch.equal, alone, [drawn(rank, c, dtype) for c in counts]))
                assert all(map(torch.equal, together, expected)), (n, dtype, reduction)
                for tensor in alone:
                    plane.all_reduce([tensor], [tensor], reduction)
                assert all(map(torch.equal, alone, expected)), (n, dtype, reduction)
                plane.all_reduce(reversed_ := [drawn(rank, c, dtype) for c in counts][::-1], reversed_, reduction)
                assert all(map(torch.equal, reversed_, expected[::-1])), (n, dtype, reduction)
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            room = plane.allocate(50_003 * dtype.itemsize + 64)
            assert not room.any()
            placed = room[64:].view(dtype)
            for reduction in (Reduction.SUM, Reduction.MEAN)[: 1 + dtype.is_floating_point]:
                placed.copy_(drawn(rank, 50_003, dtype))
                plane.all_reduce([placed], [placed], reduction)
                assert torch.equal(placed, rank_order([drawn(r, 50_003, dtype) for r in range(n)], reduction))
        wide = drawn(rank, 30_000, torch.float32).view(100, 300)
        turned = wide.t()
        plane.all_reduce([turned, wide[:, ::2].t()], [turned, torch.empty(150, 100).t().t()])
        expected = rank_order([drawn(r, 30_000, torch.float32) for r in range(n)], None)
        assert torch.equal(wide.reshape(-1), expected)

        for count in (0, 1, 5, 50_001):
            blocks = [drawn(r, n * count, torch.float32) for r in range(n)]
            part = torch.empty(count)
            plane.reduce_scatter(blocks[rank].clone(), part)
            assert torch.equal(part, rank_order(blocks, None).view(n, -1)[rank] if count else part)
            whole = torch.empty(n, count)
            plane.all_gather(drawn(rank, count, torch.float32), whole)
            assert torch.equal(whole, torch.stack([drawn(r, count, torch.float32) for r in range(n)]))
            for root in range(n):
                held = [drawn(rank, count, torch.bfloat16), torch.tensor([rank, 5]), torch.zeros(3, 2).t()]
                held[2][:] = rank
                plane.broadcast(held, root)
                assert torch.equal(held[0], drawn(root, count, torch.bfloat16)) and held[1].tolist() == [root, 5]
                assert (held[2] == root).all()
        if rank < 2:
            for count in (0, 1, 700_001):
                tensor = drawn(rank, count, torch.float32)
                if rank == 0:
                    plane.send(tensor, 1)
                else:
                    plane.recv(tensor, 0)
                    assert torch.equal(tensor, drawn(0, count, torch.float32))
        plane.barrier()
print("equal", flush=True)
dist.barrier()
"""
)

REFUSALS: Final = (
    HEAD
    + """
ways = {
    "shapes": lambda p: p.all_reduce([torch.zeros(20_000 + rank)], [torch.zeros(20_000 + rank)]),
    "types": lambda p: p.all_reduce(*2 * [[torch.zeros(5, dtype=(torch.float32, torch.float64)[rank])]]),
    "reductions": lambda p: p.all_reduce(*2 * [[torch.zeros(5)]], (Reduction.SUM, Reduction.MEAN)[rank]),
    "calls": lambda p: p.barrier() if rank else p.broadcast([torch.zeros(5)]),
    "roots": lambda p: p.broadcast([torch.zeros(5)], rank),
    "places": lambda p: p.all_reduce(*2 * [[rooms[p][rank * 64 :][:40_000]]]),
    "lengths": lambda p: p.recv(torch.zeros(2), 0) if rank else p.send(torch.zeros(3), 1),
}
planes = (collectives_of(dist.group.WORLD), Gloo(dist.group.WORLD))
rooms = {plane: plane.allocate(50_000) for plane in planes}
for plane in planes:
    for way, call in ways.items():
        try:
            call(plane)
        except InvalidArgument as error:
            print(way, error, flush=True)
        total = torch.ones(3)
        plane.all_reduce([total], [total])  # and they go on
        assert total.tolist() == [2, 2, 2]
"""
)

TRANSPORT: Final = (
    HEAD
    + """
if mine := os.environ.get(f"OF_{rank}"):
    os.environ["RDUKIT_DISTRIBUTED_TRANSPORT"] = mine
try:
    print(type(collectives_of(dist.group.WORLD)).__name__, flush=True)
except InvalidArgument as error:
    print(error, flush=True)
"""
)

KILLED: Final = (
    HEAD
    + """
plane = collectives_of(dist.group.WORLD)
value = torch.ones(100_000)
plane.all_reduce([value], [value])
print("ready", flush=True)
if rank == 1:
    signal.pause()
try:
    plane.all_reduce([value], [value], Reduction.MEAN)
except PeerLost as error:
    print(error, flush=True)
    os._exit(3)
"""
)

LATE: Final = (
    HEAD
    + """
plane = collectives_of(dist.group.WORLD)
plane.barrier()
plane.stragglers.clear()
if rank == 1:
    while "rank 0 is in collective 2" not in plane._region.describe(0):
        os.sched_yield()
plane.barrier()
first, second = plane.stragglers.table()
assert (first["rank"], first["last"], second["last"], second["late_s"]) == (1, 1, 0, 0), (first, second)
assert first["late_s"] > 0
print("late", flush=True)
dist.barrier()
"""
)

BACKEND: Final = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import sambaflow

rank, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
dist.init_process_group("rdu", init_method="file://" + os.environ["MEETING"], rank=rank, world_size=size)
total = torch.tensor([1e8, 1.0, -1e8][rank])
dist.all_reduce(total)
assert total.item() == 0  # (1e8 + 1) - 1e8 in f32; 1 in another order
part = torch.empty(2)
dist.reduce_scatter_single(part, torch.arange(6.0))
assert part.tolist() == [6.0 * rank, 6.0 * rank + 3]
pair = dist.new_group([0, 1])
if rank < 2:
    dist.destroy_process_group(pair)  # asks the group's name
held = torch.full((3,), float(rank))
dist.broadcast(held, 1)
assert held.tolist() == [1, 1, 1]
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
model(torch.randn(5, 4)).sum().backward()
gradients = [None] * size
dist.all_gather_object(gradients, model.module.weight.grad.tolist())
assert gradients[0] == gradients[1] == gradients[2]
dist.destroy_process_group()
print("trained", flush=True)
"""


@contextmanager
def ranks_of(program: str, size: int) -> Iterator[list["subprocess.Popen[str]"]]:
    """The program as processes; they are dead afterwards."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PMI_RANK": str(n), "PMI_SIZE": str(size)},
        )
        for n in range(size)
    ]  # fmt: skip
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def shared_files() -> set[str]:
    """Files of shared memory that ranks could have made; other programs have some, too."""
    return {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(("rdukit", "torch", "sem."))}


def test_sums_are_those_in_rank_order_alone_grouped_and_in_another_order_on_both_planes() -> None:
    before = shared_files()
    with ranks_of(SUMS, 4) as ranks:
        for rank in ranks:
            text, _ = rank.communicate(timeout=300)
            assert rank.returncode == 0, text
            assert "equal" in text
    assert shared_files() <= before


def test_ranks_that_call_different_things_are_told_by_name_and_go_on() -> None:
    with ranks_of(REFUSALS, 2) as ranks:
        texts = [rank.communicate(timeout=300)[0] for rank in ranks]
    for rank, text in zip(ranks, texts, strict=True):
        assert rank.returncode == 0, text
        for way in ("shapes", "types", "reductions", "calls", "roots", "lengths", "places"):
            told = [line for line in text.splitlines() if line.startswith(f"{way} ")]
            assert len(told) == (1 if way == "places" else 2), (way, text)  # on both planes; gloo has no such places
            assert all("rank 0" in line and "rank 1" in line for line in told), told


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"SAMBA_CCL_USE_PCIE_TRANSPORT": "1", "SAMBA_CCL_HIERARCHICAL_ALLREDUCE": "1"}, "SharedMemory\n"),
        ({"SAMBA_CCL_USE_PCIE_TRANSPORT": "0"}, "Gloo\n"),
        ({"SAMBA_CCL_USE_PCIE_TRANSPORT": "1", "RDUKIT_DISTRIBUTED_TRANSPORT": "gloo"}, "Gloo\n"),
        ({"OF_1": "gloo"}, "ranks choose different transports (rank 0 auto, rank 1 gloo); set distributed.transport"),
    ],
)
def test_ranks_use_the_transport_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], told: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with ranks_of(TRANSPORT, 2) as ranks:
        texts = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert all(told in text for text in texts), texts
    notes = ["no effect here: values are added in rank order" in text for text in texts]
    assert notes == ["SAMBA_CCL_HIERARCHICAL_ALLREDUCE" in variables, False]


@pytest.mark.parametrize("transport", ["auto", "gloo"])
def test_a_killed_rank_ends_the_others_by_name_long_before_their_limit_and_leaves_no_file(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_DISTRIBUTED_TRANSPORT", transport)
    with ranks_of(KILLED, 3) as ranks:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        ranks[1].send_signal(signal.SIGKILL)
        texts = [ranks[n].communicate(timeout=300)[0] for n in (0, 2)]  # they would wait for 1,800 s
    for number, text in zip((0, 2), texts, strict=True):
        if transport == "gloo":  # the second one may see the first one's end, too
            assert re.search(r"(rank 1|ranks 0, 1|ranks 1, 2) of 3 died or ended", text), text
            assert f"(rank {number} is in collective 2, all_reduce mean float32[100000])" in text
            continue
        assert "rank 1 of 3 died or ended (rank 1 finished collective 1, all_reduce sum float32[100000]" in text, text
        assert "is in collective 2, all_reduce mean float32[100000])" in text
    assert not [path for path in Path("/dev/shm").iterdir() if "rdukit" in path.name]


def test_the_rank_that_came_last_leads_the_table_of_stragglers() -> None:
    with ranks_of(LATE, 2) as ranks:
        for rank in ranks:
            text, _ = rank.communicate(timeout=300)
            assert rank.returncode == 0 and "late" in text, text


@pytest.mark.parametrize(
    ("variable", "transport"),
    [("RDUKIT_DISTRIBUTED_TIMEOUT_S", "auto"), ("LIMIT_S", "auto"), ("RDUKIT_DISTRIBUTED_TIMEOUT_S", "gloo")],
)
def test_a_rank_that_stands_still_is_named_after_the_time_limit(
    monkeypatch: pytest.MonkeyPatch, variable: str, transport: str
) -> None:
    monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("RDUKIT_DISTRIBUTED_TRANSPORT", transport)
    with ranks_of(KILLED, 2) as (first, _):
        text, _ = first.communicate(timeout=300)
    assert first.returncode == 3, text
    assert "rank 1 of 2 did not answer in time, within 1 s (rank 1 finished collective 1" in text


def test_the_backend_rdu_of_torch_adds_in_rank_order_and_trains_with_ddp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEETING", str(tmp_path / "meeting"))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with ranks_of(BACKEND, 3) as ranks:
        for rank in ranks:
            text, _ = rank.communicate(timeout=300)
            assert rank.returncode == 0, text
            assert text.endswith("trained\n")
