"""A PEF that is served without the program that compiled it has the values that no checkpoint holds."""

import contextlib
import mmap
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit.pef import read_pef
from rdukit_modelbox.verbs.compile import check_repeatable_state
from rdukit_serving.device.loaded_model import LoadedModel
from rdukit_zoo.registry import ModelEntry
from sambaflow import samba
from support import shows
from support.programs import compile_model

pytestmark = shows("modelbox-own-model", "inference")

SCALE = torch.arange(4.0) + 1


class Tables(nn.Module):
    """Reads an attribute, a global, a buffer that is not persistent and numbers that forward itself makes."""

    def __init__(self, has_noise: bool = False, length: int = 4) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.table = torch.randn(4) if has_noise else torch.arange(4.0).cos()
        self.register_buffer("angles", torch.arange(float(length)).sin()[:4], persistent=False)
        self.large = torch.ones(300_000) if length > 4 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.lin(x) * self.table + SCALE * self.angles + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return made if self.large is None else made + self.large.sum()


@pytest.fixture(autouse=True)
def portable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels that need no compiler, and a home of its own."""
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))


def compiled(model: nn.Module, folder: Path) -> Path:
    samba.session.reset()
    return Path(compile_model(model, (samba.randn(2, 4, name="x", batch_dim=0),), None, folder, precision="f32"))


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_served_pef_computes_what_the_module_does(has_checkpoint: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tables().eval()
    if not has_checkpoint:
        model.lin = nn.Identity()  # type: ignore[assignment]
    rows = np.random.default_rng(3).standard_normal((2, 4)).astype(np.float32)
    with torch.inference_mode():
        expected = model(torch.from_numpy(rows))
    save_file(
        {k: v.clone() for k, v in model.state_dict().items()} or {"none": torch.zeros(1)}, tmp_path / "c.safetensors"
    )
    pef = compiled(model, tmp_path)
    output = next(name for name, symbol in read_pef(pef).pef.symbols.items() if symbol.kind == "output")
    serving = {"inputs": [{"name": "x", "symbol": "x"}], "outputs": [{"name": "y", "symbol": output}]}
    loaded = LoadedModel("own", pef, tmp_path / "c.safetensors" if has_checkpoint else None, serving)
    with contextlib.closing(loaded), torch.inference_mode():
        memory = memoryview(mmap.mmap(-1, loaded.signature.shared_bytes))
        loaded.bind(memory)
        torch.frombuffer(memory, dtype=torch.float32, count=8)[:] = torch.from_numpy(rows).flatten()
        loaded.run(2)
        offset = loaded.signature.offsets["output/y"]
        answer = torch.frombuffer(memory, dtype=torch.float32, count=8, offset=offset).view(2, 4)
        torch.testing.assert_close(answer, expected)


def test_values_too_large_for_a_pef_are_refused_when_served(tmp_path: Path) -> None:
    model = Tables(length=5)
    save_file({k: v.clone() for k, v in model.state_dict().items()}, tmp_path / "c.safetensors")
    with pytest.raises(PefMismatch, match="reads large, which is in no checkpoint and too large"):
        LoadedModel("own", compiled(model, tmp_path), tmp_path / "c.safetensors", {})


def test_random_values_that_no_checkpoint_holds_are_refused_by_a_box() -> None:
    def entry(has_noise: bool) -> ModelEntry:
        return ModelEntry("own", "Own", "regression", "-", "-", {}, lambda: Tables(has_noise), lambda *_: ())

    check_repeatable_state(entry(False), {})
    with pytest.raises(InvalidArgument, match="table is random and not in checkpoints"):
        check_repeatable_state(entry(True), {})
