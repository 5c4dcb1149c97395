"""The sides of the vision comparison, each for a process of its own, with one call, ``forward``."""

from pathlib import Path

import torch
from torch import nn

from rdukit_zoo.comparisons.models.unet import vary_statistics
from rdukit_zoo.comparisons.side import Work
from rdukit_zoo.comparisons.vision import CASES, QUICK, ImageProgram
from rdukit_zoo.comparisons.vision_onnx_peer import OnnxRuntime


def make_case(case: str, is_quick: bool, threads: int) -> tuple[nn.Module, torch.Tensor]:
    """The model and an image, the same in every process. Sets the process up for inference."""
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    chosen = (QUICK if is_quick else CASES)[case]
    model, image = chosen.build().eval(), torch.randn(chosen.shape)
    vary_statistics(model)
    return model, image


def eager(case: str, is_quick: bool, threads: int) -> Work:
    """The module in torch."""
    model, image = make_case(case, is_quick, threads)
    return Work({"forward": lambda: model(image)})


def compiled(case: str, is_quick: bool, threads: int, precision: str, mode: str) -> Work:
    """``torch.compile`` in f32, or with weights and images in bf16; logits come out in f32."""
    model, image = make_case(case, is_quick, threads)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    forward = torch.compile(model.to(dtype), mode=mode)
    return Work({"forward": lambda: forward(image.to(dtype)).float()})


def ours(case: str, is_quick: bool, threads: int, precision: str, folder: str) -> Work:
    """A SambaFlow program."""
    model, image = make_case(case, is_quick, threads)
    program = ImageProgram(
        model, tuple(image.shape),
        {"o3": True, "precision": precision, "output_folder": folder, "pef_name": precision, "num_tiles": 1,
         "log_level": "error"},
    )  # fmt: skip
    return Work({"forward": lambda: program.run(image)})


def onnx_runtime(case: str, is_quick: bool, threads: int, folder: str) -> Work:
    """ONNX Runtime."""
    model, image = make_case(case, is_quick, threads)
    peer = OnnxRuntime(model, image, Path(folder) / "model.onnx", threads)
    return Work({"forward": lambda: peer.run(image)})
