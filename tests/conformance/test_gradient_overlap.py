"""Ranks that are processes average gradients to the bits of the rank-order mean, with overlap and groups or without."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from sambaflow import samba
from sambaflow.samba import utils
from support import FIND_SUPPORT, shows
from support.forked import fork_python
from support.programs import ResFFNLogReg, compile_model

pytestmark = shows("training", "collectives")

BATCH, STEPS = 8, 2

#: Compares each step's gradients with the means of those that this rank computes for every rank by itself.
PROGRAM = (
    FIND_SUPPORT
    + """
import os, sys, warnings
import torch
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.utils.argparser import parse_app_args
from support.programs import ResFFNLogReg

BATCH, STEPS = 8, 2
WAYS = {
    "overlap": {}, "group for each section": {"RDUKIT_DISTRIBUTED_GROUP_BYTES": "1"},
    "after backward": {"RDUKIT_DISTRIBUTED_OVERLAP": "0", "RDUKIT_DISTRIBUTED_GROUP_BYTES": "2000"},
}

def inputs_of(image, label):
    return samba.from_torch_tensor(image, name="image"), samba.from_torch_tensor(label, name="label")

def gradients_of(model):
    return {name: parameter.sn_grad.clone() for name, parameter in model.named_parameters()}

def mean(parts, dtype):
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return (total / len(parts)).to(dtype).float()

warnings.simplefilter("error")
args = parse_app_args(sys.argv[1:], common_parser_fn=lambda parser: parser.add_argument("--pefs", nargs="+"))
rank, size = utils.get_rank(), utils.get_world_size()
torch.manual_seed(5)
data = [[(torch.randn(BATCH, 16), torch.randint(4, (BATCH,))) for _ in range(size)] for _ in range(STEPS)]
for pef in args.pefs:
    for way, variables in WAYS.items():
        os.environ.update(variables)
        torch.manual_seed(1)
        model = ResFFNLogReg()
        samba.from_torch_model_(model)
        optimizer = samba.optim.SGD(model.parameters(), lr=0.0)  # so that all steps have the same parameters
        outputs = utils.trace_graph(model, inputs_of(*data[0][0]), optimizer, pef=pef)
        pef_now = samba.session._loaded().pef
        dtypes = {  # of the gradient of each parameter, by its name
            name: [getattr(torch, pef_now.symbols[part].dtype) for part in parts]
            for graph in pef_now.graphs.values() for name, parts in graph.gradients.items()
        }
        for batches in data:
            parts = []
            for batch in batches:
                samba.session.run(inputs_of(*batch), outputs, section_types=["fwd", "bckwd"])
                parts.append(gradients_of(model))
            samba.session.run(inputs_of(*batches[rank]), outputs, data_parallel=True)
            found = gradients_of(model)
            assert len(found) == 7
            for name, gradient in found.items():
                (dtype,) = dtypes[model.get_parameter(name).sn_name]
                assert torch.equal(gradient, mean([part[name] for part in parts], dtype)), (way, name, dtype)
        figures = samba.session.report()["gradients"]
        assert figures["runs"] == STEPS and 0 <= figures["hidden_share"] <= 1, figures
        assert (figures["groups"] > 1) == (way != "overlap"), (way, figures)
        late = figures["ranks"]
        assert sorted(row["rank"] for row in late) == list(range(size))
        is_shared = os.environ["RDUKIT_DISTRIBUTED_TRANSPORT"] != "gloo"
        assert (sum(row["last"] for row in late) >= STEPS) == is_shared == (late[0]["late_s"] > 0), (way, late)
        print(pef, way, figures, flush=True)
        samba.session.reset()
        for variable in variables:
            del os.environ[variable]
print("equal", flush=True)
"""
)


@pytest.fixture(scope="module")
def pefs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """One with f32 gradients, one with bf16 ones; a section for each operator."""
    made = []
    for precision in ("f32", "bf16"):
        utils.set_seed(1)
        model = ResFFNLogReg()
        samba.from_torch_model_(model)
        inputs = (
            samba.from_torch_tensor(torch.randn(BATCH, 16), name="image"),
            samba.from_torch_tensor(torch.randint(4, (BATCH,)), name="label"),
        )
        folder = tmp_path_factory.mktemp("pefs")
        made.append(
            compile_model(
                model, inputs, samba.optim.SGD(model.parameters(), lr=0.0), folder, precision=precision,
                pef_name=precision, data_parallel=True, world_size=2, optim_level="o1",
            )
        )  # fmt: skip
        samba.session.reset()
    return made


@pytest.mark.parametrize(
    ("size", "transport"),
    [(2, "auto"), (2, "gloo"), *(pytest.param(size, "auto", marks=pytest.mark.long) for size in (3, 4))],
)
def test_gradients_are_means_in_rank_order_however_they_are_grouped_and_whenever_they_leave(
    size: int, transport: str, pefs: list[str], tmp_path: Path
) -> None:
    words = ["-c", PROGRAM, "run", "--data-parallel", "-b", str(BATCH), "--pef", pefs[0], "--pefs", *pefs]
    with ExitStack() as stack:
        ranks = []
        for number in range(size):
            told = tmp_path / f"told{number}"
            file = stack.enter_context(told.open("wb"))
            environment = {
                **os.environ, "PMI_RANK": str(number), "PMI_SIZE": str(size), "OMP_NUM_THREADS": "1",
                "RDUKIT_DISTRIBUTED_TRANSPORT": transport,
            }  # fmt: skip
            program = fork_python(words, environment, stdout=file.fileno(), stderr=file.fileno(), kind="sambaflow")
            stack.callback(program.wait, 60)
            stack.callback(program.kill)
            ranks.append((program, told))
        for program, told in ranks:
            status = program.wait(300)
            assert (status, told.read_text().splitlines()[-1]) == (0, "equal"), told.read_text()
    assert not [path for path in Path("/dev/shm").iterdir() if "rdukit" in path.name]
