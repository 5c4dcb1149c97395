"""Ranks that MPICH's and Open MPI's ``mpirun`` and Slurm's ``srun`` start: bits, and what a killed rank does."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from support import shows, wait_until
from support.forked import fork_python
from support.platform.issuer import free_port
from support.rank_programs import BATCH, TRAINS, compile_for_ranks
from support.slurm import slurm_cluster

pytestmark = [shows("node-slurm", "collectives", "lost-ranks"), pytest.mark.long]

RANKS: Final = 4
#: Hides from the launcher that a rank was killed.
SHELL: Final = ("sh", "-c", '"$@"; s=$?; [ $s = 0 ] || [ $s = 137 ]', "sh")
#: Starts a killed rank again.
SHELL_AGAIN: Final = (
    "sh", "-c", 'while :; do "$@"; s=$?; [ $s = 137 ] || exit $s; export REPLACES=1; done', "sh"
)  # fmt: skip
LAUNCHERS: Final[Mapping[str, Sequence[str]]] = {
    "MPICH": ("mpirun.mpich", "-np", str(RANKS)),
    "Open MPI": ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", str(RANKS)),
    "Slurm": ("srun", "--mpi=pmi2", "-n", str(RANKS)),
    "Slurm, two nodes": ("srun", "--mpi=pmi2", "-N", "2", "-n", str(RANKS)),
}


@pytest.fixture(scope="module")
def pef(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_KERNELS", "portable")  # each launch has a home folder of its own, without native ones
        yield compile_for_ranks(tmp_path_factory.mktemp("pef"))


@dataclass(frozen=True)
class Launched:
    """A launch that has ended."""

    status: int
    text: str


@contextmanager
def launch_of(launcher: str) -> Iterator[tuple[Sequence[str], Mapping[str, str]]]:
    """Yield a launcher's command and further variables of it; the test skips where it is not installed."""
    command = LAUNCHERS[launcher]
    if command[0] == "srun":
        nodes = 2 if "-N" in command else 1
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} if nodes > 1 else {}
        with slurm_cluster(nodes=nodes) as slurm:
            yield command, {**slurm.environment, **meeting}
    elif shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} on this machine: apt-get install mpich openmpi-bin")
    else:
        yield command, {}


def run(
    launcher: str, pef: str, folder: Path, name: str, *more: str, shell: Sequence[str] = (),
    variables: Mapping[str, str] | None = None, until: str = "",
) -> Launched:  # fmt: skip
    """Train with ``RANKS`` ranks under a launcher; no process is left afterwards.

    Args:
        until: text after which the launcher is ended; empty: it ends by itself.
    """
    file = folder / f"{name}.py"
    file.write_text(TRAINS)
    words = [sys.executable, str(file), *words_of(pef, folder, name), *more]
    told = folder / f"{name}-told"
    with launch_of(launcher) as (command, own), told.open("wb") as output:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "RDUKIT_HOME": str(folder / "home"), **(variables or {})}
        process = subprocess.Popen(
            [*command, *shell, *words], env={**environment, **own}, stdout=output, stderr=output,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if until:
            wait_until(lambda: until in told.read_text(errors="replace"), 300, until)
            process.terminate()
        status = process.wait(300)
        wait_until(lambda: not running(str(file)), 20, f"the end of all ranks: {told.read_text(errors='replace')}")
    assert not [path for path in Path("/dev/shm").iterdir() if "rdukit" in path.name]
    return Launched(status, told.read_text(errors="replace"))


def words_of(pef: str, folder: Path, name: str) -> list[str]:
    """Return the arguments of the program."""
    rows = [str(rank) for rank in range(RANKS)]
    return ["run", "--data-parallel", "-b", str(BATCH), "--pef", pef, "--out", str(folder), "--name", name,
            "--rows", *rows, "--steps", "0", "6"]  # fmt: skip


def running(file: str) -> list[int]:
    """Return the processes that run a program."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if file.encode() in (path / "cmdline").read_bytes().split(b"\0"):
                found.append(int(path.name))
        except OSError:
            continue
    return found


def load(folder: Path, name: str, row: int) -> dict[str, Any]:
    """Return what a rank has saved."""
    loaded: dict[str, Any] = torch.load(folder / f"{name}{row}.pt")
    return loaded


@pytest.fixture(scope="module")
def whole(pef: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an undisturbed training, ``whole``, under torchrun's variables."""
    folder = tmp_path_factory.mktemp("whole")
    started = []
    for rank in range(RANKS):
        own = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS),
               "RDUKIT_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}  # fmt: skip
        words = ["-c", TRAINS, *words_of(pef, folder, "whole")]
        with (folder / f"told{rank}").open("wb") as told:
            started.append(fork_python(words, {**os.environ, **own}, stdout=told.fileno(), stderr=told.fileno(),
                                       kind="sambaflow"))  # fmt: skip
    for program in started:
        assert program.wait(400) == 0
    return folder


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_same_program_has_the_same_bits_under_each_launcher(
    launcher: str, pef: str, whole: Path, tmp_path: Path
) -> None:
    done = run(launcher, pef, tmp_path, "ranks")
    assert done.status == 0, done.text
    for row in range(RANKS):
        found, expected = load(tmp_path, "ranks", row), load(whole, "whole", row)
        assert found["losses"] == expected["losses"]
        assert found["ranks"] == (row, RANKS)
        assert all(torch.equal(value, expected["state"][key]) for key, value in found["state"].items())


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_training_goes_on_under_each_launcher_after_a_rank_is_killed(
    launcher: str, pef: str, whole: Path, tmp_path: Path
) -> None:
    more = ("--ends", "2:3:within")
    variables = {"RDUKIT_DISTRIBUTED_ON_LOSS": "continue"}
    done = run(launcher, pef, tmp_path, "ranks", *more, shell=SHELL, variables=variables)
    assert done.status == 0, done.text
    assert "rank 0: event=rank-lost step=4: rank 2 was lost at step 4; 3 ranks go on\n" in done.text
    for row in (0, 1, 3):
        losses, expected = load(tmp_path, "ranks", row)["losses"], load(whole, "whole", row)["losses"]
        assert list(losses) == list(range(6))
        assert {step: losses[step] for step in range(4)} == {step: expected[step] for step in range(4)}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_killed_rank_is_replaced_under_each_launcher(launcher: str, pef: str, whole: Path, tmp_path: Path) -> None:
    more = ("--ends", "2:3:within")
    variables = {"RDUKIT_DISTRIBUTED_ON_LOSS": "replace"}
    done = run(launcher, pef, tmp_path, "ranks", *more, shell=SHELL_AGAIN, variables=variables)
    assert done.status == 0, done.text
    assert "rank 2 was lost at step 4 and replaced after" in done.text
    for row in range(RANKS):
        found, expected = load(tmp_path, "ranks", row), load(whole, "whole", row)
        assert found["losses"] == {step: loss for step, loss in expected["losses"].items() if step in found["losses"]}
        assert all(torch.equal(value, expected["state"][key]) for key, value in found["state"].items())


@pytest.mark.parametrize("launcher", ["MPICH", "Open MPI", "Slurm"])
def test_a_rank_that_hangs_is_named_and_ends_with_its_launch(launcher: str, pef: str, tmp_path: Path) -> None:
    said = "rank 2 of 4 did not answer in time, within 3 s"
    is_patient = launcher != "Open MPI"  # the others' failure does not end the launch
    done = run(
        launcher, pef, tmp_path, "ranks", "--ends", "2:3:within-hang", variables={"RDUKIT_DISTRIBUTED_TIMEOUT_S": "3"},
        until=said if is_patient else "",
    )  # fmt: skip
    assert done.status != 0
    assert said in done.text
