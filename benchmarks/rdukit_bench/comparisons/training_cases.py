"""Models, batches and steps that the training comparisons share: AdamW, each as its user's loop does it."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

import sambaflow.samba as samba
from rdukit.errors import InvalidArgument
from rdukit_zoo.modules import ConvForecaster, LstmForecaster, Perceptron, PlainGpt2, PlainLeNet
from rdukit_zoo.registry import get_model
from sambaflow.samba import utils

BATCH: Final = 32
WORDS: Final = 50257


@dataclass(frozen=True, slots=True)
class TrainingCase:
    """A model with its batch; forward takes the batch's tensors in order and gives the loss [].

    ``mode`` is the optimization level our side compiles with, ``precision`` its arithmetic; the peers are f32.
    """

    name: str
    build: Callable[[], nn.Module]
    make_batch: Callable[[], Mapping[str, torch.Tensor]]
    mode: str = "o3"
    precision: str = "f32"


def _classes(*shape: int) -> Mapping[str, torch.Tensor]:
    return {"image": torch.randn(shape), "label": torch.randint(10, (shape[0],))}


def _series(*shape: int) -> Mapping[str, torch.Tensor]:
    return {"window": torch.randn(shape), "future": torch.randn(shape[0], 12)}


def _text() -> Mapping[str, torch.Tensor]:
    return _tokens(1, 128, WORDS)


def _tokens(texts: int, length: int, words: int) -> Mapping[str, torch.Tensor]:
    return {"tokens": torch.randint(words, (texts, length)), "targets": torch.randint(words, (texts, length))}


_ALL: Final = (
    TrainingCase("mlp", Perceptron, lambda: _classes(BATCH, 784)),
    TrainingCase("lstm", LstmForecaster, lambda: _series(BATCH, 24, 8)),
    TrainingCase("conv1d", ConvForecaster, lambda: _series(BATCH, 8, 96)),
    TrainingCase("lenet", PlainLeNet, lambda: _classes(BATCH, 1, 28, 28)),
    TrainingCase("gpt2", PlainGpt2, _text),
    TrainingCase("transformer", lambda: PlainGpt2(2, 64, 4, 100, 32), lambda: _tokens(16, 32, 100)),
    TrainingCase("mlp-wide", lambda: Perceptron(2048, 2048, 10, 2), lambda: _classes(512, 2048)),
)

#: Vision and science models of the zoo, in their default sizes on data that they draw.
ZOO: Final = (
    "autophasenn", "braggnn", "cosmictagger2d", "cosmictagger3d", "dcrnn", "deepvit", "lenet", "rescalenet", "unet2d",
    "unet3d", "uno", "vit",
)  # fmt: skip
ZOO_BATCH: Final = 16


class LossOf(nn.Module):
    """A model of the zoo without what it returns beside the loss."""

    def __init__(self, name: str) -> None:
        super().__init__()
        entry = get_model(name)
        self.model = entry.build(**entry.sizes)

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        """Return the loss []."""
        loss: torch.Tensor = self.model(*batch)[0]
        return loss


def _drawn(name: str) -> Mapping[str, torch.Tensor]:
    entry = get_model(name)
    assert entry.generate is not None
    return {key: torch.from_numpy(values) for key, values in entry.generate(ZOO_BATCH, 0, **entry.sizes).items()}


def _zoo_case(name: str) -> TrainingCase:
    return TrainingCase(f"zoo-{name}", lambda: LossOf(name), lambda: _drawn(name))


CASES: Final[Mapping[str, TrainingCase]] = {
    **{case.name: case for case in _ALL},
    **{f"zoo-{name}": _zoo_case(name) for name in ZOO},
    "gpt2-bf16": replace(next(case for case in _ALL if case.name == "gpt2"), name="gpt2-bf16", precision="bf16"),
}


def get_case(name: str) -> TrainingCase:
    """Return the case called ``name``.

    Raises:
        InvalidArgument: no such case; the message lists the names.
    """
    if name not in CASES:
        raise InvalidArgument(f"there is no training case {name!r}; expected {', '.join(CASES)}")
    return CASES[name]


def make_case(case: TrainingCase, seed: int = 0) -> tuple[nn.Module, Mapping[str, torch.Tensor]]:
    """Build the module and one batch, the same for the same seed."""
    torch.manual_seed(seed)
    return case.build(), case.make_batch()


LR: Final = 1e-4
BETAS: Final = (0.9, 0.997)

#: One step; gives the loss as a host tensor.
Step = Callable[[], torch.Tensor]
#: How torch sends f32 matrix products to oneDNN instead of MKL; on processors with AMX it may round them to bf16.
ROUTES: Final = {"": "none", ", oneDNN products": "bf16"}


def compile_ours(case: TrainingCase, module: nn.Module, batch: Mapping[str, torch.Tensor], folder: Path) -> str:
    """Compile as a program's ``compile`` command does. Returns the PEF's path."""
    samba.session.reset()
    samba.from_torch_model_(module)
    return str(
        samba.session.compile(
            module, _inputs(batch), _optimizer(module),
            config_dict={"output_folder": str(folder), "pef_name": case.name, "optim_level": case.mode,
                         "num_tiles": 4, "precision": case.precision, "log_level": "error"},
        )
    )  # fmt: skip


def our_step(
    case: TrainingCase, module: nn.Module, batch: Mapping[str, torch.Tensor], folder: Path, pef: str | None = None
) -> Step:
    """Return one step of a SambaFlow loop: hand the batch over, ``session.run`` with all sections, read the loss.

    ``module`` is converted in place and belongs to the session then. The PEF is compiled if none is given.
    """
    pef = pef or compile_ours(case, module, batch, folder)
    samba.from_torch_model_(module)
    traced = utils.trace_graph(module, _inputs(batch), _optimizer(module), pef=pef)
    session, scalars = samba.session, {"lr": LR}

    def step() -> torch.Tensor:
        given = [samba.from_torch_tensor(tensor, name=name) for name, tensor in batch.items()]
        (loss,) = session.run(input_tensors=given, output_tensors=traced, hyperparam_dict=scalars)
        read: torch.Tensor = samba.to_torch(loss)
        return read

    return step


def peer_step(
    module: nn.Module, batch: Mapping[str, torch.Tensor], fused: bool, route: str = "", autocast: bool = False
) -> Step:
    """Return one step of a torch loop, with f32 products on the given route, or its forward under bf16 autocast."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=LR, betas=BETAS, weight_decay=0.0, fused=fused)
    args = tuple(batch.values())

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss: torch.Tensor = module(*args)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return on_route(step, route)


def on_route(step: Step, route: str) -> Step:
    """Return the step with torch's matrix products on ``route``; set only when it differs, so that it costs nothing."""
    if not route:
        return step
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]

    def routed() -> torch.Tensor:
        if matmul.fp32_precision != route:
            matmul.fp32_precision = route
        return step()

    return routed


def loss_difference(module: nn.Module, batch: Mapping[str, torch.Tensor], ours: Step, steps: int = 3) -> float:
    """Return the largest relative difference of ``steps`` losses of ours and of eager torch from ``module``'s weights.

    ``ours`` has made no step yet.
    """
    theirs = peer_step(copy.deepcopy(module), batch, fused=False)
    pairs = [(float(ours()), float(theirs())) for _ in range(steps)]
    return largest_difference(*zip(*pairs, strict=True))


def largest_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the largest difference of a loss, as a share of theirs."""
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


def _inputs(batch: Mapping[str, torch.Tensor]) -> tuple[samba.SambaTensor, ...]:
    return tuple(samba.from_torch_tensor(tensor, name=name, batch_dim=0) for name, tensor in batch.items())


def _optimizer(module: nn.Module) -> Any:
    return samba.optim.AdamW(module.parameters(), lr=LR, betas=BETAS, weight_decay=0.0)
