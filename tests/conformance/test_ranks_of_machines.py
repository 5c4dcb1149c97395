"""Ranks that ``torchrun`` starts on several machines: bits, tokens, lost ranks and machines, wrong interfaces."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import torch

from support import shows, wait_until
from support.forked import fork_python
from support.machines import NOWHERE, MachineProgram, SeparateMachine, machines
from support.rank_programs import BATCH, DDP, TRAINS, compile_for_ranks

pytestmark = [shows("rank-machines", "collectives", "lost-ranks"), pytest.mark.long]

PORT: Final = 29_411
TOKEN: Final = {"RDUKIT_DISTRIBUTED_TOKEN": "0123456789abcdef of the ranks"}
#: Makes ``torchrun`` blind for a killed rank.
SHELL: Final = '"$@"; s=$?; [ $s = 0 ] || [ $s = 137 ]'


@pytest.fixture(scope="module")
def pef(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_KERNELS", "portable")  # each machine has a home folder of its own, without native ones
        yield compile_for_ranks(tmp_path_factory.mktemp("pef"))


@pytest.fixture(autouse=True)
def nothing_is_left() -> object:
    before = set(Path("/dev/shm").iterdir())
    yield
    assert not [path for path in set(Path("/dev/shm").iterdir()) - before if "rdukit" in path.name]


def trains(pef: str, folder: Path, name: str, ranks: int, *more: str, steps: tuple[int, int] = (0, 6)) -> list[str]:
    """Words of a SambaFlow program with these ranks."""
    file = folder / "train.py"
    file.write_text(TRAINS)
    rows = [str(rank) for rank in range(ranks)]
    return [str(file), "run", "--data-parallel", "-b", str(BATCH), "--pef", pef, "--out", str(folder), "--name", name,
            "--rows", *rows, "--steps", *map(str, steps), *more]  # fmt: skip


def plain(folder: Path, name: str) -> list[str]:
    """Words of a program of torch alone."""
    file = folder / "ddp.py"
    file.write_text(DDP)
    return [str(file), str(folder), name]


def torchrun(
    nodes: Sequence[SeparateMachine], words: Sequence[str], *, each: int = 2, is_dynamic: bool = False, shell: str = "",
    environment: Mapping[str, str] | None = None, of_last: Mapping[str, str] | None = None,
) -> list[MachineProgram]:  # fmt: skip
    """Start a launch of ``each`` ranks on each machine. ``of_last``: variables of the last one alone."""
    started = []
    for node in nodes:
        meeting = (
            ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{nodes[0].name}:{PORT}", "--rdzv-id", "launch"]
            if is_dynamic
            else ["--node-rank", str(node.number), "--master-addr", nodes[0].name, "--master-port", str(PORT)]
        )
        program = ["--no-python", "sh", "-c", shell, "sh", sys.executable, *words] if shell else list(words)
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(nodes)), "--nproc-per-node",
                   str(each), *meeting, *program]  # fmt: skip
        own = (of_last or {}) if node is nodes[-1] else {}
        started.append(node.start(command, {**(environment or {}), **own}))
    return started


def finish(programs: Sequence[MachineProgram], *, succeeds: bool = True) -> list[str]:
    """Return what the programs of all machines have written, at their end; nothing of them is left then."""
    statuses = [program.finish() for program in programs]
    texts = [program.text() for program in programs]
    assert [status == 0 for status in statuses] == [succeeds] * len(programs), "\n=====\n".join(texts)
    return texts


def alone(folder: Path, words: Sequence[str], ranks: int) -> None:
    """Run the ranks of a program on this machine."""
    started = []
    for rank in range(ranks):
        own = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT), "RDUKIT_HOME": str(folder / "home"),
               "OMP_NUM_THREADS": "1"}  # fmt: skip
        with (folder / f"alone{rank}").open("wb") as told:
            program = fork_python(words, {**os.environ, **own}, stdout=told.fileno(), stderr=told.fileno(),
                                  kind="sambaflow")  # fmt: skip
        started.append(program)
    for rank, program in enumerate(started):
        assert program.wait(400) == 0, (folder / f"alone{rank}").read_text()


def check_trained(folder: Path, name: str, other: str, rows: Sequence[int]) -> None:
    """Compare losses, parameters and a gradient of two trainings, bit for bit."""
    for row in rows:
        found, expected = (torch.load(folder / f"{of}{row}.pt") for of in (name, other))
        assert found["losses"] == expected["losses"]
        assert torch.equal(found["gradient"], expected["gradient"])
        assert all(torch.equal(value, expected["state"][key]) for key, value in found["state"].items())


@pytest.mark.parametrize(("count", "each", "is_dynamic"), [(2, 2, False), (3, 1, True), (3, 1, False)])
def test_ranks_of_several_machines_have_the_bits_of_those_of_one(
    count: int, each: int, is_dynamic: bool, pef: str, tmp_path: Path
) -> None:
    ranks = count * each
    with machines(count, tmp_path) as nodes:
        words = trains(pef, tmp_path, "nodes", ranks)
        finish(torchrun(nodes, words, each=each, is_dynamic=is_dynamic, environment=TOKEN))
        finish(torchrun(nodes, plain(tmp_path, "ddp"), each=each, is_dynamic=is_dynamic, environment=TOKEN))
    alone(tmp_path, trains(pef, tmp_path, "alone", ranks), ranks)
    alone(tmp_path, plain(tmp_path, "ddp-alone"), ranks)
    check_trained(tmp_path, "nodes", "alone", range(ranks))
    for rank in range(ranks):
        found, expected = (torch.load(tmp_path / f"{name}{rank}.pt") for name in ("ddp", "ddp-alone"))
        assert all(torch.equal(value, expected[key]) for key, value in found.items())


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize(
    ("token", "said"),
    [("another token, not of them", "do not agree: the store at machine0:"), ("", "ranks 2, 3 of 4 have no token")],
)
def test_a_machine_with_another_token_or_none_ends_all_ranks_at_once(
    token: str, said: str, is_plain: bool, tmp_path: Path
) -> None:
    words = plain(tmp_path, "ddp") if is_plain else trains("x.pef", tmp_path, "nodes", 4)
    with machines(2, tmp_path) as nodes:
        programs = torchrun(nodes, words, environment=TOKEN, of_last={"RDUKIT_DISTRIBUTED_TOKEN": token})
        texts = finish(programs, succeeds=False)
    for text in texts:
        assert "Unauthenticated: " in text
        assert said in text
        assert "RDUKIT_DISTRIBUTED_TOKEN to the same value on every rank" in text


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize(
    ("interface", "said"),
    [
        (NOWHERE, "machines of the ranks do not reach each other: rank"),
        ("eth9", "names no interface that has an address; expected one of a machine's: rank 2 has lo, rdk0, rdk1"),
    ],
)
def test_a_wrong_interface_ends_all_ranks_at_once(interface: str, said: str, is_plain: bool, tmp_path: Path) -> None:
    words = plain(tmp_path, "ddp") if is_plain else trains("x.pef", tmp_path, "nodes", 4)
    with machines(2, tmp_path) as nodes:
        texts = finish(torchrun(nodes, words, of_last={"GLOO_SOCKET_IFNAME": interface}), succeeds=False)
    assert all(said in text for text in texts), texts


#: Moves a forked program to a machine's network. The address of a machine stands for its name there.
ENTER: Final = """
import ctypes, os
_network = os.open({path!r}, os.O_RDONLY)
if ctypes.CDLL(None, use_errno=True).setns(_network, 0):
    raise OSError(ctypes.get_errno(), "setns")
os.close(_network)
"""


class Rank:
    """A rank on a machine's network: a fork, which starts in no time."""

    def __init__(
        self, machine: SeparateMachine, rank: int, size: int, words: Sequence[str], variables: Mapping[str, str]
    ):
        self.told = machine.home / f"rank{rank}.txt"
        own = {"PMI_RANK": str(rank), "PMI_SIZE": str(size), "MASTER_ADDR": "10.91.0.1", "MASTER_PORT": str(PORT),
               "RDUKIT_HOME": str(machine.home), "RDUKIT_DISTRIBUTED_TRANSPORT": "gloo", **TOKEN}  # fmt: skip
        code = ENTER.format(path=machine.network) + TRAINS
        with self.told.open("ab") as file:
            self.program = fork_python(["-c", code, *words], {**os.environ, **own, **variables},
                                       stdout=file.fileno(), stderr=file.fileno(), kind="sambaflow")  # fmt: skip

    def finish(self) -> tuple[int, str]:
        """Return its status and what it has written."""
        return self.program.wait(200), self.told.read_text()


@contextmanager
def ranks_on(
    nodes: Sequence[SeparateMachine], pef: str, folder: Path, *more: str, **variables: str
) -> Iterator[list[Rank]]:  # fmt: skip
    """Yield two ranks on each machine that train; they are dead afterwards."""
    size = 2 * len(nodes)
    words = trains(pef, folder, "nodes", size, *more)[1:]
    started = [Rank(nodes[rank // 2], rank, size, words, variables) for rank in range(size)]
    try:
        yield started
    finally:
        for rank in started:
            rank.program.kill()
            rank.program.wait(60)


def test_an_unreachable_address_ends_the_ranks_within_their_time(tmp_path: Path) -> None:
    variables = {"MASTER_ADDR": "10.93.0.1", "RDUKIT_DISTRIBUTED_RENDEZVOUS_TIMEOUT_S": "6"}
    with machines(1, tmp_path) as nodes, ranks_on(nodes, "x.pef", tmp_path, **variables) as ranks:
        (first, told), (second, other) = (rank.finish() for rank in ranks)
    assert first and second
    assert "rank 0 of 2 (by MPICH) did not meet all other ranks within 6 s (rank 1 did not come)" in told
    assert "rank 1 of 2 (by MPICH) did not meet all other ranks within 6 s (10.93.0.1:" in other


def reference(pef: str, folder: Path, ranks: int, lost_at: int, left: Sequence[int]) -> None:
    """Train with all ranks up to a step, and from there with those that are left: ``first`` and ``then``."""
    alone(folder, trains(pef, folder, "first", ranks, steps=(0, lost_at)), ranks)
    begin = ["--begin", str(folder / "first0.pt")]
    words = trains(pef, folder, "then", len(left), *begin, steps=(lost_at, 6))
    alone(folder, words, len(left))


def check_went_on(folder: Path, left: Sequence[int]) -> None:
    for row in left:
        found, first, then = (torch.load(folder / f"{name}{row}.pt") for name in ("nodes", "first", "then"))
        assert found["losses"] == {**first["losses"], **then["losses"]}
        assert all(torch.equal(value, then["state"][key]) for key, value in found["state"].items())


CONTINUE: Final = {"RDUKIT_DISTRIBUTED_ON_LOSS": "continue", "RDUKIT_DISTRIBUTED_TIMEOUT_S": "8"}


def test_under_torchrun_training_goes_on_after_a_rank_is_killed(pef: str, tmp_path: Path) -> None:
    with machines(2, tmp_path) as nodes:
        words = trains(pef, tmp_path, "nodes", 4, "--ends", "3:3:within")
        environment = {**TOKEN, "RDUKIT_DISTRIBUTED_ON_LOSS": "continue"}
        texts = finish(torchrun(nodes, words, shell=SHELL, environment=environment))
    assert "rank 3 was lost at step 4; 3 ranks go on\n" in texts[0]
    reference(pef, tmp_path, 4, 3, [0, 1, 2])
    check_went_on(tmp_path, [0, 1, 2])


#: Ranks 1 and 2, on two of three machines, make a group; rank 2 is killed while rank 1 waits for it.
GROUP: Final = """
import os, signal, sys
import torch.distributed as dist
from rdukit.errors import PeerLost
from rdukit_runtime.collectives.planes import collectives_of
from rdukit_runtime.process_group import join_process_group

rank = join_process_group().rank
group = dist.new_group([1, 2])
if rank:
    plane = collectives_of(group)
    plane.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        plane.barrier()
    except PeerLost as error:
        print(error.message, flush=True)
"""


@pytest.mark.parametrize("is_dynamic", [True, False])
def test_ranks_of_three_machines_go_on_after_a_loss_and_name_a_lost_rank_of_a_group(
    is_dynamic: bool, pef: str, tmp_path: Path
) -> None:
    environment = {**TOKEN, "RDUKIT_DISTRIBUTED_ON_LOSS": "continue"}
    file = tmp_path / "group.py"
    file.write_text(GROUP)
    with machines(3, tmp_path) as nodes:
        words = trains(pef, tmp_path, "nodes", 3, "--ends", "2:3:within")
        texts = finish(
            torchrun(nodes, words, each=1, is_dynamic=is_dynamic, shell=SHELL, environment=environment)
        )  # fmt: skip
        assert "rank 2 was lost at step 4; 2 ranks go on\n" in "".join(texts)
        texts = finish(
            torchrun(nodes, [str(file)], each=1, is_dynamic=is_dynamic, shell=SHELL, environment=environment)
        )  # fmt: skip
        said = "rank 2 of the group of ranks 1, 2 died or ended (rank 1 is in collective 2, barrier)"
        assert said in "".join(texts), texts
    reference(pef, tmp_path, 3, 3, [0, 1])
    check_went_on(tmp_path, [0, 1])


@pytest.mark.parametrize("how", ["killed", "cut", "one"])
def test_training_goes_on_without_a_killed_machine_one_whose_link_is_down_or_a_killed_rank(
    how: str, pef: str, tmp_path: Path
) -> None:
    lost = [3] if how == "one" else [2, 3]
    left = [rank for rank in range(4) if rank not in lost]
    way = {"killed": "within-hang", "cut": "within-wake", "one": "within"}[how]
    ends = ("--ends", *(f"{rank}:3:{way}" for rank in lost))
    variables = {**CONTINUE, "WAKES": str(tmp_path / "wakes")}
    with machines(2, tmp_path) as nodes, ranks_on(nodes, pef, tmp_path, *ends, **variables) as ranks:
        wait_until(lambda: all((tmp_path / f"nodes-at-end{row}").exists() for row in lost), 200)
        if how == "killed":
            for rank in ranks[2:]:
                rank.program.kill()
        elif how == "cut":
            nodes[1].cut()
            (tmp_path / "wakes").touch()
        ended = [rank.finish() for rank in ranks]
    said = (
        f"rank{'s' * (len(lost) > 1)} {', '.join(map(str, lost))} {'were' if len(lost) > 1 else 'was'} lost at step 4"
    )
    assert f"{said}; {len(left)} ranks go on\n" in ended[0][1], ended
    assert [status == 0 for status, _ in ended] == [rank in left for rank in range(4)]
    if how == "cut":
        assert all(
            "ranks 0, 1 may still run but cannot be reached, and 2 ranks are not a majority" in text
            for _, text in ended[2:]
        )
    reference(pef, tmp_path, 4, 3, left)
    check_went_on(tmp_path, left)


def test_a_killed_rank_is_replaced_on_its_machine(pef: str, tmp_path: Path) -> None:
    variables = {**CONTINUE, "RDUKIT_DISTRIBUTED_ON_LOSS": "replace"}
    ends = ("--ends", "0:2:within", "3:4:within")
    with machines(2, tmp_path) as nodes, ranks_on(nodes, pef, tmp_path, *ends, **variables) as ranks:
        words = trains(pef, tmp_path, "nodes", 4, *ends)[1:]
        for rank in (0, 3):
            assert ranks[rank].program.wait(200) != 0
            ranks[rank] = Rank(nodes[rank // 2], rank, 4, words, {**variables, "REPLACES": "1"})
        ended = [rank.finish() for rank in ranks]
    texts = "".join(text for _, text in ended)
    assert not any(status for status, _ in ended), texts
    assert "rank 0 was lost at step 3 and replaced after" in texts
    assert "rank 3 was lost at step 5 and replaced after" in texts
    alone(tmp_path, trains(pef, tmp_path, "alone", 4), 4)
    for row in range(4):
        found, expected = (torch.load(tmp_path / f"{name}{row}.pt") for name in ("nodes", "alone"))
        assert found["losses"] == {step: loss for step, loss in expected["losses"].items() if step in found["losses"]}
        assert all(torch.equal(value, expected["state"][key]) for key, value in found["state"].items())


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("killed", "rank 3 of 4 died or ended ("),
        ("hangs", "rank 3 of 4 did not answer in time, within 4 s (rank 3 is in collective"),
        ("cut", "ranks 2, 3 of 4 cannot be reached ("),
    ],
)
def test_ranks_of_another_machine_are_named_that_die_hang_or_cannot_be_reached(
    how: str, said: str, pef: str, tmp_path: Path
) -> None:
    ends = ("--ends", f"3:3:{'within' if how == 'killed' else 'within-hang'}")
    variables = {"RDUKIT_DISTRIBUTED_TIMEOUT_S": "4"}
    with machines(2, tmp_path) as nodes, ranks_on(nodes, pef, tmp_path, *ends, **variables) as ranks:
        wait_until((tmp_path / "nodes-at-end3").exists, 200)
        if how == "cut":
            nodes[1].cut()
        status, text = ranks[0].finish()
    assert status == 1
    assert "PeerLost: rank 0 of 4 lost another rank while averaging gradients: " in text
    assert said in text
