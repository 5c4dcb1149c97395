"""Programs whose ranks train on seeded samples, save what they computed, and end in steps that a test names."""

from pathlib import Path
from typing import Any, Final

import torch

from sambaflow import samba
from sambaflow.samba import utils
from support import FIND_SUPPORT
from support.programs import ResFFNLogReg, compile_model

BATCH: Final = 8
_HIDDEN: Final = 128

#: Trains on its ``--rows`` of each step, and saves ``<out>/<name><launch rank>.pt``. One rank ends in a given step.
TRAINS: Final = (
    FIND_SUPPORT
    + """
import os, signal, sys, time, warnings
import torch
from rdukit_runtime.collectives.elastic import Elastic
from rdukit_runtime.collectives.sums import Adder
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.utils.argparser import parse_app_args
from support.programs import ResFFNLogReg

def options(parser):
    parser.add_argument("--out")
    parser.add_argument("--name")
    parser.add_argument("--rows", type=int, nargs="+")
    parser.add_argument("--steps", type=int, nargs=2)
    parser.add_argument("--begin", default="")
    parser.add_argument("--ends", nargs="*", default=[])
    parser.add_argument("--split", action="store_true")

def adamw(model):
    return samba.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.99), weight_decay=0.01, max_grad_norm=0.5)

def inputs_of(image, label):
    return samba.from_torch_tensor(image, name="image"), samba.from_torch_tensor(label, name="label")

def data_of(step, row):
    torch.manual_seed(1000 * step + row)
    return torch.randn(8, 16), torch.randint(4, (8,))

def end():
    open(f"{args.out}/{args.name}-at-end{row}", "w").close()
    if "wake" in how:
        while not os.path.exists(os.environ["WAKES"]):
            time.sleep(0.05)
        Adder.combine = combine
    elif "hang" in how:
        signal.pause()
    else:
        os.kill(os.getpid(), signal.SIGKILL)

def end_within(self, *arguments):
    combine(self, *arguments)
    end()

warnings.simplefilter("error")
args = parse_app_args(sys.argv[1:], common_parser_fn=options)
rank = utils.get_rank()
row = args.rows[rank]
if os.environ.get("REPLACES"):
    args.ends = []
ends = {int(text.split(":")[0]): text.split(":")[1:] for text in args.ends}
last, how = ends.get(rank, ("-1", ""))
combine = Adder.combine
torch.manual_seed(1)
model = ResFFNLogReg(hidden_size=128)
samba.from_torch_model_(model)
optimizer = adamw(model)
outputs = utils.trace_graph(model, inputs_of(*data_of(0, row)), optimizer, pef=args.pef)
if args.begin:
    held = torch.load(args.begin)
    model.load_state_dict(held["state"])
    optimizer.load_state_dict(held["optimizer"])
    samba.session.to_rdu(model, optimizer)
losses = {}
for step in range(max(args.steps[0], utils.get_finished_steps()), args.steps[1]):
    if step == int(last):
        if how.startswith("after"):
            Elastic.commit = lambda self: end()
        elif how.startswith("within"):
            Adder.combine = end_within
        else:
            end()
    inputs = inputs_of(*data_of(step, row))
    if args.split:
        for sections in (["fwd"], ["bckwd"]):
            samba.session.run(inputs, outputs, section_types=sections, data_parallel=True)
        loss = float(outputs[0].data)
        samba.session.run(inputs, outputs, section_types=["gradnorm", "opt"], data_parallel=True)
        losses[step] = loss
    else:
        losses[step] = float(samba.session.run(inputs, outputs, data_parallel=True)[0].data)
samba.session.to_cpu(model, optimizer)
report = samba.session.report().get("gradients", {})
torch.save(
    {"losses": losses, "state": {k: v.data.clone() for k, v in model.state_dict().items()},
     "optimizer": optimizer.state_dict(), "gradient": model.gemm2.weight.sn_grad.clone(),
     "reported": report.get("losses", []), "ranks": (utils.get_rank(), utils.get_world_size())},
    f"{args.out}/{args.name}{row}.pt",
)
samba.session.reset()
"""
)

#: A plain PyTorch program: torch's DDP over the backend ``rdu``. Saves ``<first word>/<second><rank>.pt``.
DDP: Final = """
import os, sys
import torch
import torch.distributed as dist
import sambaflow
from torch import nn

dist.init_process_group("rdu")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 200), nn.GELU(), nn.Linear(200, 4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(6):
    torch.manual_seed(1000 * step + rank)
    loss = nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.randint(4, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), f"{sys.argv[1]}/{sys.argv[2]}{rank}.pt")
dist.destroy_process_group()
"""


def compile_for_ranks(folder: Path) -> str:
    """Compile the model of ``TRAINS``: a section for each operator, so that gradients leave in several groups.

    Returns the PEF's path.
    """
    utils.set_seed(1)
    model = ResFFNLogReg(hidden_size=_HIDDEN)
    samba.from_torch_model_(model)
    inputs = (
        samba.from_torch_tensor(torch.randn(BATCH, 16), name="image"),
        samba.from_torch_tensor(torch.randint(4, (BATCH,)), name="label"),
    )
    optimizer: Any = samba.optim.AdamW(
        model.parameters(), lr=0.01, betas=(0.9, 0.99), weight_decay=0.01, max_grad_norm=0.5
    )
    made = compile_model(
        model, inputs, optimizer, folder, precision="f32", pef_name="elastic", data_parallel=True, world_size=2,
        optim_level="o1",
    )  # fmt: skip
    samba.session.reset()
    return made
