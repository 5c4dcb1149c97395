"""``rdukit pef compare`` on compiled models: a clear difference is told, fails the gate, and the options come first."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

from rdukit.errors import InvalidArgument
from rdukit_runtime.profile.compare_command import compare
from sambaflow import samba
from support import shows
from support.programs import compile_model

pytestmark = shows("pef-profile", "pef")


class Product(nn.Module):
    """One matrix product: [64, width] → [64, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.linear(x)
        return made


def compiled(width: int, folder: Path) -> str:
    samba.session.reset()
    samba.from_torch_model_(model := Product(width))
    x = samba.randn(64, width, name="x", batch_dim=0)
    return compile_model(model, x, None, folder / str(width), precision="f32", kernels="portable")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(compare, [str(argument) for argument in arguments], catch_exceptions=False)


def test_a_much_slower_pef_is_told_and_fails_the_gate(tmp_path: Path) -> None:
    small, large = compiled(64, tmp_path), compiled(1024, tmp_path)  # 256 times the work
    shown = run(small, large, "--rounds", 9, "--json", "--fail-if-slower", "3%")
    found = json.loads(shown.stdout)
    assert shown.exit_code == 1
    assert found["fails"]
    assert found["step"]["verdict"] == "slower"
    assert found["step"]["low"] > 1.03
    assert "3 % are allowed" in shown.stderr
    assert run(large, small, "--rounds", 9, "--fail-if-slower", "0.03").exit_code == 0
    with pytest.raises(InvalidArgument, match="expected 7 or more"):
        run(small, large, "--rounds", 3, "--fail-if-slower", "3%")
    assert run(small, large, "--fail-if-slower", "much").exit_code == 2
