"""PEFs that earlier versions wrote still load and run. The files are what those versions really wrote."""

from pathlib import Path

import pytest
import torch

from rdukit.pef.file import FORMAT_VERSION, read_pef
from rdukit.pef.model import SymbolKind
from rdukit_runtime.engine.device_tensors import persistent_layout
from rdukit_runtime.engine.portable import build_portable
from rdukit_runtime.engine.program import LoadedProgram
from support import shows

pytestmark = shows("engine")

FILES = sorted((Path(__file__).parents[2] / "data/pef").glob("mlp_*.pef"))


def test_there_is_a_file_of_every_earlier_minor_version() -> None:
    major, minor = FORMAT_VERSION
    versions = {tuple(map(int, file.stem.split("_")[-2:])) for file in FILES}
    assert versions >= {(major, earlier) for earlier in range(minor)}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_training_step_of_an_earlier_versions_pef_equals_torch(file: Path) -> None:
    loaded = read_pef(file)
    pef = loaded.pef
    _, size = persistent_layout(pef)
    program = LoadedProgram(pef, {d: build_portable(k) for d, k in loaded.kernels.items()}, memoryview(bytearray(size)))
    torch.manual_seed(0)
    symbols = [s for s in pef.symbols.values() if s.kind is SymbolKind.PARAMETER]
    values = {s.name: (torch.randn(s.shape) * 0.5).requires_grad_() for s in symbols}
    x, y = torch.randn(8, 4), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    program.write_all([*((name, value.detach()) for name, value in values.items()), ("x", x), ("y", y)])
    graph = program.find_graph(None)
    program.run(graph, program.choose_sections(graph), pef.hyperparameters)

    first, second = "mlp__first__", "mlp__second__"
    hidden = torch.relu(torch.nn.functional.linear(x, values[first + "weight"], values[first + "bias"]))
    out = torch.nn.functional.linear(hidden, values[second + "weight"], values[second + "bias"])
    loss = torch.nn.functional.cross_entropy(out, y)
    loss.backward()
    # bf16 arithmetic on the device: 2**-8 a rounding, a handful of them on the way
    torch.testing.assert_close(program.read(graph.losses[0]), loss.detach(), atol=0.02, rtol=0.02)
    for name, value in values.items():
        assert value.grad is not None
        stepped = value.detach() - pef.hyperparameters["sgd0.lr"] * value.grad
        torch.testing.assert_close(program.read(name), stepped, atol=0.1 * 0.02, rtol=0.005)
