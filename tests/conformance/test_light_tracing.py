"""Tracing imports neither torch's own compilers nor sympy, and leaves all as it was; whoever needs them gets them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import shows

pytestmark = shows("pytorch")

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
from sambaflow.tracing.tracer import trace_model
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


@pytest.mark.long
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


@pytest.mark.long
def test_a_checkpoint_of_torch_needs_neither(tmp_path: Path) -> None:
    body = "x = torch.compiler.disable(lambda a: a, recursive=False)(x) if torch.compiler.is_dynamo_compiling() else x"
    assert run(tmp_path, body=body) == ["False False 2"]


#: Operators of the usual models, after each of which nothing heavy is imported.
LIGHT = """
import sys, torch
from torch import nn
from torch.nn import functional
import sambaflow.samba as samba

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear, self.words = nn.LayerNorm(8), nn.Linear(8, 8), nn.Embedding(9, 8)
        self.image = nn.Conv2d(1, 2, 3)
    def forward(self, x, n):
        x = self.norm(x) + self.words(n)[:, :, 0]
        x = x.view(2, 3, 2, 4).transpose(1, 2)
        x = functional.scaled_dot_product_attention(x, x, x).transpose(1, 2).reshape(2, 3, 8)
        x = functional.gelu(self.linear(x)) * 2 - x.mean(-1, keepdim=True)
        x = torch.cat([x, x @ x.transpose(1, 2)], -1).split(4, -1)[0].softmax(-1)
        return functional.max_pool2d(self.image(x[:, None]), (1, 2)).flatten(1).argmax(1)

model = Model()
samba.from_torch_model_(model)
x = samba.SambaTensor(shape=(2, 3, 8), dtype=torch.float32, name="x")
n = samba.SambaTensor(shape=(2, 3, 1), dtype=torch.int64, name="n")
samba.session.compile(model, (x, n), name="model", inference=True, config_dict={
    "output_folder": sys.argv[1], "pef_name": "model", "optim_level": "o1", "precision": "f32", "log_level": "error"})
names = ["torch._dynamo", "sympy", "torch.fx.experimental.symbolic_shapes", "torch.distributed.tensor"]
print(*[name for name in names if name in sys.modules])
"""


@pytest.mark.long
def test_a_second_compile_of_a_usual_model_imports_neither_sympy_nor_distributed_tensors(tmp_path: Path) -> None:
    def compile_once() -> str:
        made = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", LIGHT, str(tmp_path)], capture_output=True, text=True, check=False,
            env={**os.environ, "RDUKIT_HOME": str(tmp_path), "RDUKIT_KERNELS": "portable"},
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    first, pef = compile_once(), (tmp_path / "model" / "model.pef").read_bytes()
    assert "torch._dynamo" in first.split()  # sections are built: torch differentiates and decomposes
    assert compile_once() == ""
    assert (tmp_path / "model" / "model.pef").read_bytes() == pef


@pytest.mark.long
def test_symbolic_shapes_are_torch_s_own_after_a_trace(tmp_path: Path) -> None:
    after = (
        "assert 'sympy' not in sys.modules and 'torch.fx.experimental.symbolic_shapes' not in sys.modules\n"
        "import sympy\n"
        "from torch.fx.experimental.symbolic_shapes import ShapeEnv, guard_or_false\n"
        "assert guard_or_false.__module__ == ShapeEnv.__module__ == 'torch.fx.experimental.symbolic_shapes'\n"
        "assert type(torch.fx.experimental.symbolic_shapes) is type(sys) and sympy.Symbol('a').name == 'a'\n"
        "compiled = torch.compile(lambda a: a.reshape(-1) + a.shape[0], backend='eager', dynamic=True)\n"
        "print([float(compiled(torch.ones(n, 1))[0]) for n in (2, 3)])"
    )
    assert run(tmp_path, after=after) == ["False False 2", "[3.0, 4.0]"]


@pytest.mark.long
def test_a_forward_that_uses_sympy_or_symbolic_shapes_gets_them(tmp_path: Path) -> None:
    body = (
        "import sympy, kept; symbol = sympy.Symbol('a')\n"
        "        assert isinstance(symbol, sympy.Basic) and sympy.__version__ and not isinstance(1, sympy.Basic)\n"
        "        assert kept.GuardOnDataDependentSymNode.__module__ == kept.ShapeEnv.__module__\n"
        "        assert kept.guard_or_false(True) and not isinstance(1, kept.ShapeEnv)"
    )
    (tmp_path / "kept.py").write_text(
        "from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv, guard_or_false\n"
        "assert guard_or_false.__module__ == 'torch.fx.experimental.symbolic_shapes'\n"
    )
    assert run(tmp_path, body=f"sys.path.insert(0, {str(tmp_path)!r}); {body}") == ["False False 2"]


@pytest.mark.long
def test_a_part_that_a_forward_imports_is_run_once(tmp_path: Path) -> None:
    body = "import torch._dynamo.utils as first; self.first = first"
    after = (
        "from torch._dynamo import eval_frame\n"
        "assert model.first is sys.modules['torch._dynamo.utils'] is torch._dynamo.utils\n"
        "print(model.first.__spec__.origin == model.first.__file__)\n"
        "print(eval_frame.compile_times is model.first.compile_times)"
    )
    assert run(tmp_path, body=body, after=after)[1:] == ["True", "True"]
