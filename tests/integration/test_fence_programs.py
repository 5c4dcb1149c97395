"""What boxes do with torch works in a fence as it does outside: ranks, workers of loaders, shared memory, compilers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rdukit.fence.probe import what_holds
from rdukit.fence.spec import FenceSpec, Way
from rdukit.fence.start import program_paths, start_fenced
from support import shows

pytestmark = [
    shows("job-boxes", "security", "native"),
    shows("job-boxes", "security", "native"),
    pytest.mark.skipif(not what_holds().holds, reason=f"no fence holds here: {what_holds().why}"),
]

UID = 219_998
PROGRAM_S = 240.0


def run(folder: Path, program: str) -> Any:
    """The JSON that a program in a fence prints last."""
    way = what_holds().way
    assert way is not None
    work = folder / "work"
    work.mkdir()
    script = work / "program.py"
    script.write_text(program)
    if way is Way.ROOT:
        shutil.chown(work, UID, UID)
    command = [sys.executable, str(script)]
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(work), "RDUKIT_HOME": str(work), "OMP_NUM_THREADS": "1",
        "RDUKIT_COMPILE_WORKERS": "1",
    }  # fmt: skip
    spec = FenceSpec(
        command, environment, str(work), program_paths(command[:1]), [str(work)],
        uid=UID if way is Way.ROOT else None, parent=os.getpid(),
    )  # fmt: skip
    with (folder / "said.txt").open("w+b") as said:
        process = start_fenced(spec, way, said)
        try:
            status = process.wait(PROGRAM_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        said.seek(0)
        text = said.read().decode()
    assert status == 0, text
    return json.loads(text.splitlines()[-1])


@pytest.mark.long
def test_ranks_talk_over_the_fences_own_loopback(tmp_path: Path) -> None:
    program = """
import json, os, torch
import torch.distributed as dist, torch.multiprocessing as mp
def work(rank, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    value = torch.full((1000,), float(rank + 1))
    dist.all_reduce(value)
    results.put((rank, float(value.sum())))
    dist.barrier()
    dist.destroy_process_group()
if __name__ == "__main__":
    queue = mp.get_context("spawn").Queue()
    mp.spawn(work, (queue,), nprocs=2)
    print(json.dumps(sorted(queue.get() for _ in range(2))))
"""
    assert run(tmp_path, program) == [[0, 3000.0], [1, 3000.0]]


def test_loaders_hand_tensors_over_in_shared_memory(tmp_path: Path) -> None:
    program = """
import json, torch
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    data = TensorDataset(torch.arange(64.0).reshape(64, 1))
    total = sum(float(batch.sum()) for (batch,) in DataLoader(data, batch_size=8, num_workers=2))
    print(json.dumps(total))
"""
    assert run(tmp_path, program) == 2016.0


@pytest.mark.long
def test_native_kernels_are_built_and_signed_and_run(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    program = """
import json, pathlib, torch
import sambaflow.samba as samba
from rdukit_runtime.application import open_application
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)
    def forward(self, x):
        return self.layer(x)
net = Net()
samba.from_torch_model_(net)
pef = samba.session.compile(net, (samba.randn(2, 8, name="x"),), inference=True, app_dir="out",
                            config_dict={"pef_name": "net", "num_tiles": 4})
with open_application(str(pef), "net") as application:
    print(json.dumps(application.native_kernels))
"""
    assert run(tmp_path, program) > 0
