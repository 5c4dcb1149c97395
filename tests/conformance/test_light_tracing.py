"""Tracing does not import torch's own compilers, and leaves everything as it was; whoever needs them gets them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRACE = """
import sys, torch
from torch import nn
import sambaflow.samba as samba

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
    def forward(self, x):
        {body}
        return torch.relu(self.linear(x))

model = Model()
samba.from_torch_model_(model)
x = samba.SambaTensor(shape=(2, 4), dtype=torch.float32, name="x")
from sambaflow.samba.tracer import trace_model
traced = trace_model(model, (x,), "model")
print("torch._dynamo" in sys.modules, "torch._inductor" in sys.modules, len(traced.graph.operators))
{after}
"""


def run(tmp_path: Path, body: str = "pass", after: str = "") -> list[str]:
    """Lines that a fresh process prints."""
    made = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TRACE.format(body=body, after=after)],
        capture_output=True, text=True, check=False, env={**os.environ, "RDUKIT_HOME": str(tmp_path)},
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return made.stdout.splitlines()


def test_a_trace_imports_neither_and_the_packages_are_themselves_afterwards(tmp_path: Path) -> None:
    after = (
        "import torch._dynamo, torch._inductor.config\n"
        "assert torch._dynamo.__file__ and torch._dynamo.config.cache_size_limit > 0\n"
        "compiled = torch.compile(lambda a: a + 1, backend='eager')\n"
        "print(float(compiled(torch.ones(()))))"
    )
    assert run(tmp_path, after=after) == ["False False 2", "2.0"]


@pytest.mark.parametrize(
    "body",
    [
        "import torch._dynamo.utils; torch._dynamo.utils.counters",
        "torch._dynamo.is_compiling()",
        "from torch._inductor.utils import is_cpu_device",
    ],
)
def test_a_forward_that_asks_for_one_of_them_gets_it(tmp_path: Path, body: str) -> None:
    assert run(tmp_path, body=body) == ["True True 2"]


def test_a_checkpoint_of_torch_needs_neither(tmp_path: Path) -> None:
    body = "x = torch.compiler.disable(lambda a: a, recursive=False)(x) if torch.compiler.is_dynamo_compiling() else x"
    assert run(tmp_path, body=body) == ["False False 2"]
