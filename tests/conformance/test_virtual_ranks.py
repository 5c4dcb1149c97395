"""``--virtual-ranks``: replicas in one process have the bits of as many ranks, dropout and buffers included."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import InvalidArgument, PefMismatch, ShapeMismatch
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.sessions.virtual_ranks import check_virtual_ranks
from support import FIND_SUPPORT, shows
from support.forked import fork_python
from support.programs import compile_model

pytestmark = shows("training", "scaling")

BATCH, STEPS, RANKS = 4, 3, 4

NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 10), nn.Linear(10, 3)
        self.norm, self.drop = nn.BatchNorm1d(10), nn.Dropout(0.4)

    def forward(self, image, label):
        out = self.second(self.drop(torch.relu(self.norm(self.first(image)))))
        return nn.functional.cross_entropy(out, label), out
"""
#: Trains on its part of each joint batch, or on all of it, and saves what it computed as ``<out>/<name>.pt``.
PROGRAM = (
    FIND_SUPPORT
    + """
import sys, warnings
import torch
from torch import nn
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.utils.argparser import parse_app_args
"""
    + NET
    + """
def options(parser):
    parser.add_argument("--out")
    parser.add_argument("--pefs", nargs="+")
    parser.add_argument("--replicas", type=int)

def inputs_of(image, label):
    return samba.from_torch_tensor(image, name="image"), samba.from_torch_tensor(label, name="label")

warnings.simplefilter("error")
args = parse_app_args(sys.argv[1:], common_parser_fn=options)
is_virtual = args.virtual_ranks > 1
rank, total = utils.get_rank(), args.replicas * args.batch_size
assert (args.virtual_ranks if is_virtual else utils.get_world_size()) == args.replicas
mine = slice(0, total) if is_virtual else slice(rank * args.batch_size, (rank + 1) * args.batch_size)
torch.manual_seed(9)
data = [(torch.randn(total, 6)[mine], torch.randint(3, (total,))[mine]) for _ in range(3)]
for number, pef in enumerate(args.pefs):
    torch.manual_seed(4)
    model = Net()
    samba.from_torch_model_(model)
    optimizer = samba.optim.AdamW(model.parameters(), lr=0.01, max_grad_norm=0.5)
    outputs = utils.trace_graph(model, inputs_of(*data[0]), optimizer, pef=pef)
    losses, logits = [], []
    for inputs in data:
        torch.rand(3)  # the program draws numbers, too
        loss, out = samba.session.run(inputs_of(*inputs), outputs, data_parallel=True)
        losses.append(samba.to_torch(loss).reshape(-1))
        logits.append(samba.to_torch(out))
    gradient = model.first.weight.sn_grad
    samba.session.to_cpu(model)
    state = {name: value.data.clone() for name, value in model.state_dict().items()}
    made = {"losses": losses, "logits": logits, "gradient": gradient, "state": state, "random": torch.rand(2)}
    torch.save(made, f"{args.out}/{'virtual' if is_virtual else rank}-{number}.pt")
    samba.session.reset()
print("trained", flush=True)
"""
)


def build_net() -> nn.Module:
    scope: dict[str, Any] = {"nn": nn, "torch": torch}
    exec(NET, scope)
    made: nn.Module = scope["Net"]()
    return made


def inputs_of(count: int) -> tuple[Any, Any]:
    torch.manual_seed(2)
    image, label = torch.randn(count, 6), torch.randint(3, (count,))
    return samba.from_torch_tensor(image, name="image"), samba.from_torch_tensor(label, name="label")


def adamw(model: nn.Module) -> Any:
    return samba.optim.AdamW(model.parameters(), lr=0.01, max_grad_norm=0.5)


@pytest.fixture(scope="module")
def pefs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By precision; compiled for the batch of one replica."""
    made = {}
    for precision in ("f32", "bf16"):
        utils.set_seed(1)
        model = build_net()
        samba.from_torch_model_(model)
        made[precision] = compile_model(
            model, inputs_of(BATCH), adamw(model), tmp_path_factory.mktemp("pefs"), precision=precision,
            pef_name=precision, data_parallel=True, world_size=2,
        )  # fmt: skip
        samba.session.reset()
    return made


@pytest.mark.parametrize("replicas", [2, pytest.param(RANKS, marks=pytest.mark.long)])
def test_virtual_ranks_have_the_bits_of_as_many_ranks(replicas: int, pefs: dict[str, str], tmp_path: Path) -> None:
    words = [
        "-c", PROGRAM, "run", "--data-parallel", "-b", str(BATCH), "--out", str(tmp_path), "--replicas", str(replicas),
        "--pef", pefs["f32"], "--pefs", *pefs.values(),
    ]  # fmt: skip
    launched: list[tuple[list[str], dict[str, str]]] = [
        (words, {"PMI_RANK": str(number), "PMI_SIZE": str(replicas)}) for number in range(replicas)
    ]
    launched.append(([*words, "--virtual-ranks", str(replicas)], {}))
    with ExitStack() as stack:
        programs = []
        for number, (said, variables) in enumerate(launched):
            told = tmp_path / f"told{number}"
            file = stack.enter_context(told.open("wb"))
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
            program = fork_python(said, environment, stdout=file.fileno(), stderr=file.fileno(), kind="sambaflow")
            stack.callback(program.wait, 60)
            stack.callback(program.kill)
            programs.append((program, told))
        for program, told in programs:
            assert program.wait(300) == 0, told.read_text()
    for number in range(len(pefs)):
        ranks = [torch.load(tmp_path / f"{rank}-{number}.pt") for rank in range(replicas)]
        virtual = torch.load(tmp_path / f"virtual-{number}.pt")
        for step in range(STEPS):
            for name in ("losses", "logits"):
                assert torch.equal(virtual[name][step], torch.cat([rank[name][step] for rank in ranks])), (name, step)
        assert torch.equal(virtual["gradient"], ranks[0]["gradient"])
        assert torch.equal(virtual["random"], ranks[0]["random"])
        for name, value in virtual["state"].items():  # of the running statistics, rank 0's
            assert torch.equal(value, ranks[0]["state"][name]), name
        assert not torch.equal(ranks[0]["state"]["norm.running_mean"], ranks[1]["state"]["norm.running_mean"])


@pytest.fixture
def two_replicas(pefs: dict[str, str]) -> Iterator[tuple[nn.Module, Any, Any]]:
    """Model, joint inputs and outputs of a program with two virtual ranks."""
    samba.session.options = {"virtual_ranks": 2}
    torch.manual_seed(4)
    model = build_net()
    samba.from_torch_model_(model)
    inputs = inputs_of(2 * BATCH)
    outputs = utils.trace_graph(model, inputs, adamw(model), pef=pefs["f32"])
    yield model, inputs, outputs
    samba.session.options = {}
    samba.session.reset()


def test_a_step_in_two_calls_keeps_the_outputs_of_all_replicas(two_replicas: tuple[nn.Module, Any, Any]) -> None:
    model, inputs, outputs = two_replicas
    loss, logits = samba.session.run(inputs, outputs, section_types=["fwd", "bckwd"], data_parallel=True)
    assert tuple(samba.to_torch(loss).shape) == (2,)
    before = model.get_parameter("first.weight").data.clone()
    again = samba.session.run(inputs, outputs, section_types=["gradnorm", "opt"], data_parallel=True)
    assert torch.equal(samba.to_torch(again[1]), samba.to_torch(logits))
    samba.session.to_cpu(model)
    assert not torch.equal(model.get_parameter("first.weight").data, before)


def test_what_replicas_of_one_process_cannot_do_is_refused(
    two_replicas: tuple[nn.Module, Any, Any], pefs: dict[str, str]
) -> None:
    model, inputs, outputs = two_replicas
    with pytest.raises(InvalidArgument, match="require data_parallel=True"):
        samba.session.run(inputs, outputs)
    with pytest.raises(ShapeMismatch, match="does not divide into 2 equal batches"):
        samba.session.run(inputs_of(2 * BATCH + 1), outputs, data_parallel=True)
    samba.session.run(inputs, outputs, section_types=["fwd"])
    with pytest.raises(InvalidArgument, match=r"activations of only one replica, .*; run section_types"):
        samba.session.run(inputs, outputs, section_types=["bckwd"], data_parallel=True)
    samba.session.reset()
    samba.session.options = {"virtual_ranks": 3}
    with pytest.raises(PefMismatch, match=r"hold 2 times the batch .* with --virtual-ranks 3 pass 3 batches"):
        utils.trace_graph(model, inputs, adamw(model), pef=pefs["f32"])


@pytest.mark.parametrize(
    ("count", "data_parallel", "ranks", "reason"),
    [(0, True, 1, "expected 1 or more"), (4, False, 1, "add --data-parallel"), (4, True, 2, "2 were launched")],
)
def test_options_that_cannot_go_together_are_refused(count: int, data_parallel: bool, ranks: int, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        check_virtual_ranks(count, data_parallel, ranks)
