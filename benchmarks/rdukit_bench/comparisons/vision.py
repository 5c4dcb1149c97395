"""Comparison: ViT-S/16 (batch 8) and a U-Net (256x256), against torch, compiled and not, and ONNX Runtime.

Inference; ours is a SambaFlow program, compiled for inference: the image goes in, logits come out on the host.
"""

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from rdukit_bench.comparisons.contestant import ContestantCalls
from rdukit_bench.comparisons.contestants import Contestants
from rdukit_bench.comparisons.model import PEER_MISSING, BenchOptions, ComparisonRow, comparison
from rdukit_bench.comparisons.timing import pair_row, rounds_of
from rdukit_zoo.modules import PlainVit, PlainVitSizes, Unet, UnetSizes, vary_statistics
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
class VisionCase:
    """A model in eval mode, and the shape of its images."""

    build: Callable[[], nn.Module]
    shape: tuple[int, int, int, int]


CASES: Final[Mapping[str, VisionCase]] = {
    "ViT-S/16 batch 8": VisionCase(lambda: PlainVit(PlainVitSizes()), (8, 3, 224, 224)),
    "U-Net 256x256": VisionCase(lambda: Unet(UnetSizes()), (1, 3, 256, 256)),
}
QUICK: Final[Mapping[str, VisionCase]] = {
    "ViT-S/16 batch 8": VisionCase(lambda: PlainVit(PlainVitSizes(layers=2)), (8, 3, 224, 224)),
    "U-Net 256x256": VisionCase(lambda: Unet(UnetSizes(width=8)), (1, 3, 256, 256)),
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
        """Return the logits of ``image``."""
        given = [samba.from_torch_tensor(image, name="image")]
        return self.session.run(given, self._outputs, section_types=["fwd"])[0].data

    def close(self) -> None:
        """Unload the PEF."""
        self.session.close()


@comparison("vision")
def compare(options: BenchOptions) -> Iterator[ComparisonRow]:
    """Yield the rows of each model: ours in f32 and bf16 against both peers, each contestant in its own process."""
    for name in CASES:
        if options.wants(name):
            with (
                tempfile.TemporaryDirectory(dir=options.folder or None) as folder,
                Contestants(Path(folder)) as contestants,
            ):
                yield from _compare_case(name, folder, contestants, options)


def _compare_case(name: str, folder: str, contestants: Contestants, options: BenchOptions) -> Iterator[ComparisonRow]:
    common: dict[str, Any] = {"case": name, "is_quick": options.quick, "threads": options.threads}
    contestants.start(EAGER, f"{__name__}:eager", **common)
    for precision in PRECISIONS:
        contestants.start(precision, f"{__name__}:ours", precision=precision, folder=folder, **common)
    if find_missing_package() is None:
        contestants.start(ONNX, f"{__name__}:onnx_runtime", folder=folder, **common)
    else:
        contestants.failed[ONNX] = PEER_MISSING
    for side, (precision, mode, _) in COMPILED.items():
        if not (options.quick and mode != "default"):
            contestants.start(side, f"{__name__}:compiled", precision=precision, mode=mode, **common)
    places = {side: (side, "forward") for side in (EAGER, *PRECISIONS, ONNX, *COMPILED)}
    timings = contestants.measure(places, rounds_of(options), sample_s=options.sample_s)
    gold = contestants.value(places[EAGER])
    for precision, (bar, tolerance) in PRECISIONS.items():
        words = []
        if precision in timings:
            error = float((contestants.value(places[precision]) - gold).abs().max() / gold.abs().max())
            words.append(f"outputs within {error:.1e} of eager f32")
            if error > tolerance:
                words.append(f"WRONG: {tolerance:.0e} is allowed")
        words += [contestants.failed[side] for side in (precision, ONNX) if side in contestants.failed]
        ours = (precision, f"rdukit {precision}")
        yield pair_row("vision", name, timings, ours, ONNX, bar, "; ".join(words))
        yield pair_row("vision", name, timings, ours, EAGER, None, "")
        for side, (theirs, _, least) in COMPILED.items():
            if theirs == precision:
                yield pair_row("vision", name, timings, ours, side, least, contestants.failed.get(side, ""))
    yield pair_row("vision", name, timings, ("bf16", "rdukit bf16"), "f32", OWN_F32_BAR, "the peer is rdukit f32")


__all__ = ["CASES", "PRECISIONS", "ImageProgram", "compare"]


def find_missing_package() -> str | None:
    """Return the first missing package that ONNX Runtime's contestant needs; None if all are installed."""
    return next((name for name in ("onnxruntime", "onnx", "onnxscript") if find_spec(name) is None), None)


class OnnxRuntime:
    """A module in f32 under ONNX Runtime on the processor, with all of its graph optimisations."""

    def __init__(self, model: nn.Module, image: torch.Tensor, path: Path, threads: int) -> None:
        """Export to ``path`` and load. ``image`` [B, C, Y, X] gives the shape, which is fixed."""
        onnxruntime: Any = import_module("onnxruntime")

        with _quiet():
            torch.onnx.export(model, (image,), str(path), dynamo=True, verbose=False)
        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self._session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._name = self._session.get_inputs()[0].name

    def run(self, image: torch.Tensor) -> torch.Tensor:
        """Return the logits of ``image``."""
        return torch.from_numpy(self._session.run(None, {self._name: image.numpy()})[0])


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def make_case(case: str, is_quick: bool, threads: int) -> tuple[nn.Module, torch.Tensor]:
    """Build the model and an image, the same in every process, and set the process up for inference."""
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    chosen = (QUICK if is_quick else CASES)[case]
    model, image = chosen.build().eval(), torch.randn(chosen.shape)
    vary_statistics(model)
    return model, image


def eager(case: str, is_quick: bool, threads: int) -> ContestantCalls:
    """Build the module in torch."""
    model, image = make_case(case, is_quick, threads)
    return ContestantCalls({"forward": lambda: model(image)})


def compiled(case: str, is_quick: bool, threads: int, precision: str, mode: str) -> ContestantCalls:
    """Build ``torch.compile`` in f32, or with weights and images in bf16; logits come out in f32."""
    model, image = make_case(case, is_quick, threads)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    forward = torch.compile(model.to(dtype), mode=mode)
    return ContestantCalls({"forward": lambda: forward(image.to(dtype)).float()})


def ours(case: str, is_quick: bool, threads: int, precision: str, folder: str) -> ContestantCalls:
    """Build a SambaFlow program."""
    model, image = make_case(case, is_quick, threads)
    program = ImageProgram(
        model, tuple(image.shape),
        {"o3": True, "precision": precision, "output_folder": folder, "pef_name": precision, "num_tiles": 1,
         "log_level": "error"},
    )  # fmt: skip
    return ContestantCalls({"forward": lambda: program.run(image)})


def onnx_runtime(case: str, is_quick: bool, threads: int, folder: str) -> ContestantCalls:
    """Build ONNX Runtime's session."""
    model, image = make_case(case, is_quick, threads)
    peer = OnnxRuntime(model, image, Path(folder) / "model.onnx", threads)
    return ContestantCalls({"forward": lambda: peer.run(image)})
