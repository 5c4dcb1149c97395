"""The vision models of the comparisons give what plain torch gives, as programs and under ONNX Runtime."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rdukit_bench.comparisons.vision import ImageProgram, OnnxRuntime, find_missing_package
from torch import nn

from rdukit_zoo.modules import PlainVit, PlainVitSizes, Unet, UnetSizes, vary_statistics
from support import shows

pytestmark = shows("bench", "precision")

SMALL: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int, int]]] = {
    "vit": (lambda: PlainVit(PlainVitSizes(32, 8, 24, 2, 3, 40, 7)), (2, 3, 32, 32)),
    "unet": (lambda: Unet(UnetSizes(32, 4, 2, 3, 2)), (1, 3, 32, 32)),
}


def make_model(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(2)
    build, shape = SMALL[name]
    model = build().eval()
    vary_statistics(model)
    return model, torch.randn(shape)


@pytest.mark.parametrize("name", SMALL)
# f32 sums in another order; bf16 has 8 bits in each of a dozen layers. As a share of the largest output.
@pytest.mark.parametrize(("precision", "tolerance"), [("f32", 1e-5), ("bf16", 5e-2)])
def test_a_program_gives_the_outputs_of_the_module(name: str, precision: str, tolerance: float) -> None:
    model, image = make_model(name)
    config = {"o3": True, "precision": precision, "log_level": "error", "num_tiles": 1}
    program = ImageProgram(copy.deepcopy(model), tuple(image.shape), config)
    try:
        with torch.no_grad():
            gold = model(image)
        assert float((program.run(image) - gold).abs().max() / gold.abs().max()) < tolerance
    finally:
        program.close()


@pytest.mark.skipif(find_missing_package() is not None, reason="ONNX Runtime is not installed: rdukit[bench]")
@pytest.mark.parametrize("name", SMALL)
def test_onnx_runtime_gives_the_outputs_of_the_module(name: str, tmp_path: Path) -> None:
    model, image = make_model(name)
    with torch.no_grad():
        gold = model(image)
        found = OnnxRuntime(model, image, tmp_path / "model.onnx", threads=1).run(image)
    torch.testing.assert_close(found, gold, rtol=1e-4, atol=1e-4)
