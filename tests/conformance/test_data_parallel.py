"""Two ranks of ``--data-parallel``, as two processes on loopback."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from sambaflow import samba
from sambaflow.samba import utils
from support import FIND_SUPPORT, shows, wait_until
from support.forked import ForkedProgram, fork_python
from support.platform.issuer import free_port
from support.programs import ResFFNLogReg, compile_model

pytestmark = shows("surface", "node")

BATCH, STEPS = 8, 6

#: Trains in each of its ``--ways`` and saves what it computed as ``<out>/<way><rank>.pt``.
PROGRAM = (
    FIND_SUPPORT
    + """
import os, signal, sys, warnings
import torch
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.utils.argparser import parse_app_args
from support.programs import ResFFNLogReg

def options(parser):
    parser.add_argument("--ways", default="whole")
    parser.add_argument("--out", default=".")
    parser.add_argument("--pef-of-rank-1", default=None)

def inputs_of(image, label):
    return samba.from_torch_tensor(image, name="image"), samba.from_torch_tensor(label, name="label")

def train(way):
    torch.manual_seed(100 + rank)  # ranks start from different values; rank 0's count
    model = ResFFNLogReg()
    samba.from_torch_model_(model)
    optimizer = samba.optim.AdamW(model.parameters(), lr=0.01, max_grad_norm=0.05)
    outputs = utils.trace_graph(model, inputs_of(*data[0]), optimizer, pef=args.pef)
    losses = []
    for step, inputs in enumerate(data):
        def run(sections=None):
            return samba.session.run(
                inputs_of(*inputs), outputs, section_types=sections, data_parallel=True, reduce_on_rdu=True
            )
        if way == "dies" and rank == 1 and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "hangs" and rank == 1 and step == 2:
            signal.pause()
        if way == "sections":
            loss = run(["fwd"])[0]
            run(["bckwd"])
            run(["gradnorm"])
            run(["opt"])
        elif way == "reduce":
            loss = run(["fwd", "bckwd"])[0]
            run(["reduce"])
            run(["gradnorm", "opt"])
        else:
            loss = run()[0]
        losses.append(float(samba.to_torch(loss)))
        print(f"rank {rank} step {step}", flush=True)
    samba.session.to_cpu(model)
    state = {name: value.data.clone() for name, value in model.state_dict().items()}
    gradient = model.gemm1.weight.sn_grad
    torch.save({"losses": losses, "state": state, "gradient": gradient}, f"{args.out}/{way}{rank}.pt")
    samba.session.reset()

warnings.simplefilter("error")
args = parse_app_args(sys.argv[1:], common_parser_fn=options)
rank = utils.get_rank()
assert args.local_rank == rank and utils.get_world_size() == 2
if rank == 1 and args.pef_of_rank_1:
    args.pef = args.pef_of_rank_1
loaded = torch.load(f"{args.out}/data.pt")
mine = slice(rank * args.batch_size, (rank + 1) * args.batch_size)
data = [(image[mine], label[mine]) for image, label in zip(loaded["image"], loaded["label"])]
for way in args.ways.split(","):
    train(way)
"""
)


def initial_model() -> ResFFNLogReg:
    """What rank 0 of the program starts from."""
    torch.manual_seed(100)
    return ResFFNLogReg()


def adamw(model: Any) -> Any:
    return samba.optim.AdamW(model.parameters(), lr=0.01, max_grad_norm=0.05)


def inputs_of(image: torch.Tensor, label: torch.Tensor) -> tuple[Any, Any]:
    return samba.from_torch_tensor(image, name="image"), samba.from_torch_tensor(label, name="label")


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pefs")


@pytest.fixture
def pef(shared_folder: Path) -> str:
    """Compiled for data parallel, once for all tests."""
    path = shared_folder / "out" / "replica" / "replica.pef"
    if not path.exists():
        compiled(shared_folder, BATCH, "replica", data_parallel=True, world_size=2)
        samba.session.reset()
    return str(path)


def compiled(folder: Path, batch: int, name: str, **config: Any) -> str:
    utils.set_seed(1)
    model = initial_model()
    samba.from_torch_model_(model)
    inputs = inputs_of(torch.randn(batch, 16), torch.randint(4, (batch,)))
    config = {"precision": "f32", "pef_name": name, **config}
    return compile_model(model, inputs, adamw(model), folder, **config)


def save_data(folder: Path) -> dict[str, torch.Tensor]:
    """``image`` [steps, 2 ranks x batch, 16], ``label`` [steps, 2 ranks x batch]."""
    torch.manual_seed(7)
    data = {"image": torch.randn(STEPS, 2 * BATCH, 16), "label": torch.randint(4, (STEPS, 2 * BATCH))}
    torch.save(data, folder / "data.pt")
    return data


#: How the ranks are told their numbers: variables of rank ``n`` of 2.
LAUNCHERS: dict[str, Callable[[int], dict[str, str]]] = {
    "MPICH": lambda n: {"PMI_RANK": str(n), "PMI_SIZE": "2", "MPI_LOCALRANKID": str(n), "MPI_LOCALNRANKS": "2"},
    "Open MPI": lambda n: {
        "OMPI_COMM_WORLD_RANK": str(n), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": str(n),
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
    "Slurm": lambda n: {
        "SLURM_PROCID": str(n), "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": str(n), "SLURM_STEP_NUM_NODES": "1",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Rank:
    """Process of a rank, and the file that it writes to."""

    program: ForkedProgram
    said: Path

    def finish(self) -> str:
        """Return what it wrote when it has ended."""
        self.program.wait(60)
        return self.said.read_text()


@contextmanager
def two_ranks(
    folder: Path, arguments: Sequence[str], launcher: str = "MPICH", more: Mapping[str, str] | None = None,
    of_second: Mapping[str, str] | None = None,
) -> Iterator[list[Rank]]:  # fmt: skip
    """The program as two processes; they are dead afterwards. ``of_second``: variables that only rank 1 has."""
    words = ["-c", PROGRAM, "run", "--data-parallel", "--out", str(folder), *arguments]
    with ExitStack() as stack:
        ranks = []
        for number in range(2):
            file = stack.enter_context((folder / f"said{number}").open("wb"))
            own = (of_second or {}) if number else {}
            environment = {**os.environ, **LAUNCHERS[launcher](number), **(more or {}), **own}
            program = fork_python(words, environment, stdout=file.fileno(), stderr=file.fileno(), kind="sambaflow")
            stack.callback(program.wait, 60)
            stack.callback(program.kill)
            ranks.append(Rank(program, folder / f"said{number}"))
        yield ranks


def joint_batch(pef: str, data: Mapping[str, torch.Tensor]) -> tuple[list[float], dict[str, torch.Tensor], Any]:
    """Losses, parameters and a gradient of one rank that trains with both ranks' samples."""
    model = initial_model()
    samba.from_torch_model_(model)
    optimizer = adamw(model)
    inputs = inputs_of(data["image"][0], data["label"][0])
    outputs = utils.trace_graph(model, inputs, optimizer, pef=pef)
    losses = []
    for step in range(STEPS):
        loss, _ = samba.session.run(inputs_of(data["image"][step], data["label"][step]), outputs)
        losses.append(float(loss.data))
    samba.session.to_cpu(model)
    return losses, {k: v.data.clone() for k, v in model.state_dict().items()}, model.gemm1.weight.sn_grad


def test_two_ranks_train_as_one_rank_with_the_joint_batch_whole_or_section_by_section(pef: str, tmp_path: Path) -> None:
    data = save_data(tmp_path)
    losses, state, gradient = joint_batch(compiled(tmp_path, 2 * BATCH, "joint"), data)
    ways = ("whole", "sections", "reduce")
    with two_ranks(tmp_path, ["--pef", pef, "-b", str(BATCH), "--ways", ",".join(ways)]) as ranks:
        for rank in ranks:
            text = rank.finish()
            assert rank.program.returncode == 0, text
    for way in ways:
        first, second = (torch.load(tmp_path / f"{way}{n}.pt") for n in range(2))
        for name, value in first["state"].items():
            assert torch.equal(value, second["state"][name]), (way, name)
            # f32: the same sums in another order; a step of AdamW is 1e-2, three digits above the tolerance
            assert torch.allclose(value, state[name], rtol=1e-5, atol=1e-5), (way, name)
        assert torch.equal(first["gradient"], second["gradient"])
        assert torch.allclose(first["gradient"], gradient, rtol=1e-5, atol=1e-6)
        for mine, other, joint in zip(first["losses"], second["losses"], losses, strict=True):
            assert mine != other
            assert (mine + other) / 2 == pytest.approx(joint, abs=1e-5)


def test_a_killed_rank_ends_the_other_with_a_clear_error(pef: str, tmp_path: Path) -> None:
    save_data(tmp_path)
    with two_ranks(tmp_path, ["--pef", pef, "-b", str(BATCH), "--ways", "dies"], "Open MPI") as (first, second):
        assert second.program.wait(60) == -signal.SIGKILL
        text = first.finish()
    assert first.program.returncode == 1
    assert "PeerLost: rank 0 of 2 lost another rank while averaging gradients" in text
    assert not (tmp_path / "dies0.pt").exists()


@pytest.mark.long
def test_a_rank_that_does_not_answer_ends_the_other_in_bounded_time(pef: str, tmp_path: Path) -> None:
    save_data(tmp_path)
    arguments = ["--pef", pef, "-b", str(BATCH), "--ways", "hangs"]
    with two_ranks(tmp_path, arguments, "Slurm", {"RDUKIT_DISTRIBUTED_TIMEOUT_S": "2"}) as (first, _):
        text = first.finish()
    assert first.program.returncode == 1
    assert "PeerLost" in text
    assert "rank 1 of 2 did not answer in time, within 2 s (rank 1 finished collective" in text
    assert ", and is past the run at <string>:" in text
    assert ", and is in section reduce of the run at <string>:" in text


@pytest.mark.long
def test_a_rank_that_never_starts_ends_the_other_in_bounded_time(tmp_path: Path) -> None:
    with two_ranks(tmp_path, ["--pef", "x"], more={"RDUKIT_DISTRIBUTED_RENDEZVOUS_TIMEOUT_S": "2"}) as (first, second):
        second.program.kill()
        text = first.finish()
    assert first.program.returncode == 1
    assert "rank 0 of 2 (by MPICH) did not meet all other ranks within 2 s" in text


@pytest.mark.parametrize("is_given", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_rank_without_the_token_is_refused_at_once_and_the_file_with_the_secret_is_private(
    tmp_path: Path, is_given: bool
) -> None:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} if is_given else {}
    home = tmp_path / "home"
    more = {"RDUKIT_HOME": str(home), "RDUKIT_DISTRIBUTED_TOKEN": "a token of the first rank", **meeting}
    with two_ranks(tmp_path, ["--pef", "x"], "Open MPI", more, {"RDUKIT_DISTRIBUTED_TOKEN": ""}) as (first, second):
        text = second.finish()
        assert second.program.returncode == 1
        assert "Unauthenticated: the store at 127.0.0.1:" in text
        assert "set $RDUKIT_DISTRIBUTED_TOKEN to the same value on every rank" in text
        wait_until(lambda: "event=rank-refused peer=127.0.0.1" in first.said.read_text())
        files = list((home / "run").glob("rendezvous-*"))
        assert [file.stat().st_mode & 0o777 for file in files] == ([] if is_given else [0o600])


@pytest.mark.long
def test_ranks_with_different_pefs_are_all_told_before_anything_runs(pef: str, tmp_path: Path) -> None:
    save_data(tmp_path)
    other = compiled(tmp_path, BATCH, "other", data_parallel=True, world_size=2, optim_level="o0")
    with two_ranks(tmp_path, ["--pef", pef, "--pef-of-rank-1", other, "-b", str(BATCH)]) as ranks:
        said = [rank.finish() for rank in ranks]
    for text in said:
        assert f"PefMismatch: rank 1 loaded {other}, which computes something other than rank 0's {pef}" in text
        assert "step 0" not in text
