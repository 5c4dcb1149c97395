"""The same program with the same seed: the same losses to the last bit, in fresh processes, alone and beside others."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import shows
from support.node.daemons import RunningDaemon, environment, running_daemon

pytestmark = [shows("node", "portable"), pytest.mark.long]

#: Trains a network with every kind of randomness that forward may have; prints losses and a digest of the parameters.
PROGRAM = """
import hashlib, sys
import torch
from torch import nn
from torch.nn import functional as F
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.utils.argparser import parse_app_args

class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop, self.drop2d = nn.Dropout(0.3), nn.Dropout2d(0.2)
        self.lin, self.head = nn.Linear(64, 16), nn.Linear(16, 4)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, image, label):
        x = self.drop2d(F.max_pool2d(self.norm(self.conv(image)).relu(), 2)).flatten(1)
        x = self.drop(self.lin(x).tanh())
        x = x + 0.1 * torch.randn_like(x) + 0.1 * torch.rand(x.shape)
        x = x * torch.bernoulli(torch.full_like(x, 0.9))
        out = self.head(x)
        return self.criterion(out, label), out

def options(parser):
    parser.add_argument("--forever", action="store_true")
    parser.add_argument("--seed", type=int, default=7)

args = parse_app_args(sys.argv[1:], common_parser_fn=options)
utils.set_seed(args.seed)
model = Noisy()
samba.from_torch_model_(model)
inputs = (samba.randn(8, 1, 8, 8, name="image"), samba.randint(4, (8,), name="label"))
optimizer = samba.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
if args.command == "compile":
    samba.session.compile(model, inputs, optimizer, name="noisy", config_dict=vars(args))
    sys.exit()
outputs = utils.trace_graph(model, inputs, optimizer, pef=args.pef)
while True:
    for step in range(10):
        loss, out = samba.session.run(inputs, outputs)
        print(samba.to_torch(loss).item().hex(), flush=True)
    if not args.forever:
        break
samba.session.to_cpu(model)
values = map(samba.to_torch, model.state_dict().values())
held = b"".join(value.detach().contiguous().numpy().tobytes() for value in values)
print(hashlib.sha256(held).hexdigest())
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with running_daemon("TEST-1") as started:
        yield started


def command(folder: Path, *arguments: str) -> list[str]:
    script = folder / "noisy.py"
    script.write_text(PROGRAM)
    return [sys.executable, str(script), *arguments, "--log-level", "error"]


def variables(daemon: RunningDaemon) -> dict[str, str]:
    return environment(
        daemon.home, RDUKIT_NODE="daemon", RDUKIT_SND_SOCKET=str(daemon.socket), RDUKIT_KERNELS="portable"
    )


def said(folder: Path, daemon: RunningDaemon, *arguments: str) -> list[str]:
    done = subprocess.run(
        command(folder, *arguments), env=variables(daemon), cwd=folder, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_fresh_processes_give_identical_losses_alone_and_beside_another_program(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    said(tmp_path, daemon, "compile", "--pef-name", "noisy", "--arch", "sn10", "--num-tiles", "1")
    run = ["run", "--pef", str(tmp_path / "out" / "noisy" / "noisy.pef")]
    alone = said(tmp_path, daemon, *run)
    assert len(set(alone)) == 11  # each step draws other numbers
    other = subprocess.Popen(
        command(tmp_path, *run, "--forever", "--seed", "8"), env=variables(daemon), cwd=tmp_path,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert other.stdout is not None
        assert other.stdout.readline().strip() != alone[0]  # it holds its tiles and computes, with another seed
        beside = said(tmp_path, daemon, *run)
        assert other.poll() is None
    finally:
        other.kill()
        other.communicate()
    assert beside == alone
