"""How fast are ViT-S/16 (batch 8) and a U-Net (256x256), against torch and ONNX Runtime in f32?

Inference; ours is a SambaFlow program, compiled for inference: the image goes in, logits come out on the host.
"""

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from rdukit_zoo.comparisons.model import PEER_MISSING, Options, Row, comparison
from rdukit_zoo.comparisons.models.unet import Unet, UnetSizes, vary_statistics
from rdukit_zoo.comparisons.models.vit import Vit, VitSizes
from rdukit_zoo.comparisons.timing import Timing, rounds_of, time_in_turn
from rdukit_zoo.comparisons.vision_onnx_peer import OnnxRuntime, find_missing_package
from sambaflow import samba
from sambaflow.samba.session import SambaSession

EAGER: Final = "eager f32"
ONNX: Final = "ONNX Runtime f32"
#: Precision of ours → bar against ONNX Runtime, and the largest difference of an output from torch's as a share of the
#: largest: f32 sums in another order; bf16 has 8 bits in each of dozens of layers.
PRECISIONS: Final = {"f32": (0.95, 1e-4), "bf16": (1.6, 1e-1)}


@dataclass(frozen=True, slots=True)
class Case:
    """A model in eval mode, and the shape of its images."""

    build: Callable[[], nn.Module]
    shape: tuple[int, int, int, int]


CASES: Final[Mapping[str, Case]] = {
    "ViT-S/16 batch 8": Case(lambda: Vit(VitSizes()), (8, 3, 224, 224)),
    "U-Net 256x256": Case(lambda: Unet(UnetSizes()), (1, 3, 256, 256)),
}
QUICK: Final[Mapping[str, Case]] = {
    "ViT-S/16 batch 8": Case(lambda: Vit(VitSizes(layers=2)), (8, 3, 224, 224)),
    "U-Net 256x256": Case(lambda: Unet(UnetSizes(width=8)), (1, 3, 256, 256)),
}


class ImageProgram:
    """A loaded PEF of a model that takes one image tensor; it has a session of its own."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...], config: Mapping[str, Any]) -> None:
        """Compile and load; ``config`` as ``session.compile`` takes it. ``model`` becomes a samba model."""
        self.session = SambaSession()
        samba.from_torch_model_(model)
        inputs = (samba.zeros(*shape, name="image"),)
        self.pef_path = self.session.compile(model, inputs, inference=True, config_dict=dict(config))
        self._outputs = self.session.trace(model, inputs, None, self.pef_path)

    def run(self, image: torch.Tensor) -> torch.Tensor:
        """Logits of ``image``."""
        given = [samba.from_torch_tensor(image, name="image")]
        return self.session.run(given, self._outputs, section_types=["fwd"])[0].data

    def close(self) -> None:
        """Unload the PEF."""
        self.session.close()


@comparison("vision")
def compare(options: Options) -> Iterator[Row]:
    """Rows of each model: ours in f32 and bf16 against both peers."""
    torch.set_num_threads(options.threads)
    for name, case in (QUICK if options.quick else CASES).items():
        if options.wants(name):
            with tempfile.TemporaryDirectory(dir=options.folder or None) as folder, torch.no_grad():
                yield from _compare_case(name, case, Path(folder), options)


def _compare_case(name: str, case: Case, folder: Path, options: Options) -> Iterator[Row]:
    torch.manual_seed(0)
    model, image = case.build().eval(), torch.randn(case.shape)
    vary_statistics(model)
    converted = copy.deepcopy(model)
    programs = {
        precision: ImageProgram(
            converted, case.shape,
            {"o3": True, "precision": precision, "output_folder": str(folder), "pef_name": precision, "num_tiles": 1,
             "log_level": "error"},
        )
        for precision in PRECISIONS
    }  # fmt: skip
    calls: dict[str, Callable[[], torch.Tensor]] = {EAGER: lambda: model(image)}
    for precision, program in programs.items():
        calls[precision] = lambda program=program: program.run(image)  # type: ignore[misc]
    if find_missing_package() is None:
        peer = OnnxRuntime(model, image, folder / "model.onnx", options.threads)
        calls[ONNX] = lambda: peer.run(image)
    try:
        timings = time_in_turn(calls, rounds_of(options), sample_s=options.sample_s, warmup=1)
        gold = calls[EAGER]()
        for precision, (bar, tolerance) in PRECISIONS.items():
            error = float((calls[precision]() - gold).abs().max() / gold.abs().max())
            words = [f"outputs within {error:.1e} of eager f32"]
            if error > tolerance:
                words.append(f"WRONG: {tolerance:.0e} is allowed")
            if ONNX not in timings:
                words.append(PEER_MISSING)
            yield _row(name, timings, precision, ONNX, bar, "; ".join(words))
            yield _row(name, timings, precision, EAGER, None, "")
    finally:
        for program in programs.values():
            program.close()


def _row(case: str, timings: Mapping[str, Timing], ours: str, peer: str, bar: float | None, note: str) -> Row:
    mine, other = timings[ours], timings.get(peer)
    return Row(
        question="vision", case=case, ours=f"rdukit {ours}", peer=peer, unit="ms", bar=bar, note=note,
        ours_value=mine.median_s * 1e3,
        peer_value=None if other is None else other.median_s * 1e3,
        ratio=None if other is None else other.median_s / mine.median_s,
        samples=len(mine.samples_s),
        details={name: timings[name].body("ms") for name in (ours, peer) if name in timings},
    )  # fmt: skip


__all__ = ["CASES", "PRECISIONS", "ImageProgram", "compare"]
