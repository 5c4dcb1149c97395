"""Bits depend on program, seed, PEF and number of threads alone: a training with two threads, in fresh processes.

The processes run side by side, so that their threads come by in another order each time.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import FIND_SUPPORT, shows

pytestmark = [shows("engine", "native", "portable"), pytest.mark.long]

PROGRAM = (
    FIND_SUPPORT
    + """
import hashlib, json, sys
import torch
from torch import nn
from torch.nn import functional as F
from sambaflow import samba
from sambaflow.samba import utils
from support.programs import compile_model


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(40, 128), nn.Embedding(64, 128)
        self.table = nn.Parameter(torch.randn(128, 300))
        self.head = nn.Linear(128, 40)

    def forward(self, x, y):
        made = F.dropout(self.tokens(x) + self.places(torch.arange(64)), 0.1).tanh()
        made = made + self.table[:, (x * 7 + y) % 300].permute(1, 2, 0) * 0.1
        made = self.head(made[:, [0, 3, -1, 3] * 20])
        return F.cross_entropy(made.flatten(0, 1), y[:, :1].repeat(1, 80).flatten())


utils.set_seed(5)
net = Reader()
samba.from_torch_model_(net)
inputs = samba.randint(40, (8, 64), name="x"), samba.randint(40, (8, 64), name="y")
optimizer = samba.optim.AdamW(net.parameters(), lr=1e-2)
if sys.argv[1] == "compile":
    from pathlib import Path
    compile_model(net, inputs, optimizer, Path(sys.argv[2]), optim_level=sys.argv[3], precision="f32")
else:
    utils.trace_graph(net, inputs, optimizer, pef=sys.argv[2])
    assert torch.get_num_threads() == 2
    losses = [samba.to_torch(samba.session.run(inputs, net.output_tensors)[0]).item() for _ in range(3)]
    samba.session.to_cpu(net)
    trained = {name: samba.to_torch(p).detach().numpy().tobytes() for name, p in net.named_parameters()}
    bits = {name: hashlib.sha256(data).hexdigest() for name, data in trained.items()}
    print(json.dumps([losses, bits]))
"""
)


@pytest.mark.parametrize("kernels", ["native", "portable"])
def test_a_training_with_two_threads_has_the_same_bits_in_each_process(kernels: str, tmp_path: Path) -> None:
    if kernels == "native" and shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    (tmp_path / "program.py").write_text(PROGRAM)
    environ = os.environ | {"RDUKIT_KERNELS": kernels, "RDUKIT_NODE": "private", "OMP_NUM_THREADS": "2"}
    environ["RDUKIT_COMPILE_WORKERS"] = "2"  # kernels are dealt to two processes, as elsewhere in tests to one
    compiled = [sys.executable, "program.py", "compile", str(tmp_path), "o3"]
    subprocess.run(compiled, cwd=tmp_path, env=environ, check=True)
    command = [sys.executable, "program.py", "run", "out/model/model.pef"]
    started = [
        subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    said = [json.loads(process.communicate(timeout=300)[0].splitlines()[-1]) for process in started]
    losses, bits = said[0]
    assert len(set(losses)) == 3 and len(set(bits.values())) == len(bits)
    assert all(other == said[0] for other in said[1:])
