"""How fast are ViT-S/16 (batch 8) and a U-Net (256x256), against torch, compiled and not, and ONNX Runtime?

Inference; ours is a SambaFlow program, compiled for inference: the image goes in, logits come out on the host.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from rdukit_zoo.comparisons.model import PEER_MISSING, Options, Row, comparison
from rdukit_zoo.comparisons.models.unet import Unet, UnetSizes
from rdukit_zoo.comparisons.models.vit import Vit, VitSizes
from rdukit_zoo.comparisons.sides import Sides
from rdukit_zoo.comparisons.timing import pair_row, rounds_of
from rdukit_zoo.comparisons.vision_onnx_peer import find_missing_package
from sambaflow import samba
from sambaflow.samba.session import SambaSession

EAGER: Final = "eager f32"
ONNX: Final = "ONNX Runtime f32"
#: Compiled torch, as its user gives it: precision, mode of ``torch.compile``, bar for ours in that precision.
COMPILED: Final = {
    "torch.compile f32": ("f32", "default", None),
    "torch.compile bf16": ("bf16", "default", 1.0),
    "torch.compile max-autotune bf16": ("bf16", "max-autotune-no-cudagraphs", 1.0),
}
#: The least ratio of our bf16 to our f32: the quicker route is measured on each machine.
OWN_F32_BAR: Final = 0.95
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
    """Rows of each model: ours in f32 and bf16 against both peers, every side in a process of its own."""
    for name in CASES:
        if options.wants(name):
            with tempfile.TemporaryDirectory(dir=options.folder or None) as folder, Sides(Path(folder)) as sides:
                yield from _compare_case(name, folder, sides, options)


def _compare_case(name: str, folder: str, sides: Sides, options: Options) -> Iterator[Row]:
    common: dict[str, Any] = {"case": name, "is_quick": options.quick, "threads": options.threads}
    sides.start(EAGER, f"{__package__}.vision_sides:eager", **common)
    for precision in PRECISIONS:
        sides.start(precision, f"{__package__}.vision_sides:ours", precision=precision, folder=folder, **common)
    if find_missing_package() is None:
        sides.start(ONNX, f"{__package__}.vision_sides:onnx_runtime", folder=folder, **common)
    else:
        sides.failed[ONNX] = PEER_MISSING
    for side, (precision, mode, _) in COMPILED.items():
        if not (options.quick and mode != "default"):
            sides.start(side, f"{__package__}.vision_sides:compiled", precision=precision, mode=mode, **common)
    places = {side: (side, "forward") for side in (EAGER, *PRECISIONS, ONNX, *COMPILED)}
    timings = sides.measure(places, rounds_of(options), sample_s=options.sample_s)
    gold = sides.value(places[EAGER])
    for precision, (bar, tolerance) in PRECISIONS.items():
        words = []
        if precision in timings:
            error = float((sides.value(places[precision]) - gold).abs().max() / gold.abs().max())
            words.append(f"outputs within {error:.1e} of eager f32")
            if error > tolerance:
                words.append(f"WRONG: {tolerance:.0e} is allowed")
        words += [sides.failed[side] for side in (precision, ONNX) if side in sides.failed]
        ours = (precision, f"rdukit {precision}")
        yield pair_row("vision", name, timings, ours, ONNX, bar, "; ".join(words))
        yield pair_row("vision", name, timings, ours, EAGER, None, "")
        for side, (theirs, _, least) in COMPILED.items():
            if theirs == precision:
                yield pair_row("vision", name, timings, ours, side, least, sides.failed.get(side, ""))
    yield pair_row("vision", name, timings, ("bf16", "rdukit bf16"), "f32", OWN_F32_BAR, "the peer is rdukit f32")


__all__ = ["CASES", "PRECISIONS", "ImageProgram", "compare"]
