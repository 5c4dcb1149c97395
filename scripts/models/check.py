"""Try one model: inference and a training step, against the same model in eager torch."""

import copy
import os
import statistics
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from families import Case
from torch import nn

from rdukit.errors import RdukitError
from rdukit.pef.file import read_pef
from rdukit.pef.kernel import KernelGraph
from rdukit.pef.units import KERNEL_CHECK
from rdukit_runtime.check.rounding import MOVES, Rounding

#: Of the largest element of each tensor: f32, in another order of additions, over the models' depth.
TOLERANCE: Final = 1e-4
_NARROW_TOLERANCE: Final = 6e-2
#: Gradients below this share of the largest are compared with that: many are 0 but for rounding.
_LEAST: Final = 1e-3
#: Times as far as eager torch from double precision, or in bf16 from f32.
_FACTOR: Final = 4.0
#: Eager's runs with moved results.
_MOVED_RUNS: Final = 3
#: More is left out.
MAX_PARAMETERS: Final = 150_000_000


@dataclass(frozen=True, slots=True)
class Found:
    """Result of one model in one stage (``inference`` or ``training``).

    Outcomes: ``right``, ``wrong``, ``refused`` by an error of ours, ``crashed`` with another one; ``random`` if eager
    torch differs from itself, ``late`` or ``died`` by the process; ``not-run`` if eager torch does not run it.
    ``sections`` can be native, and ``natives`` are; ``complaints``: reasons of the kernel check, ``check``, against
    the others.
    """

    case: Case
    stage: str
    mode: str
    kernels: str
    precision: str
    outcome: str
    reason: str = ""
    error: float = 0.0
    seconds: float = 0.0
    parameters: int = 0
    inputs: str = ""
    sections: int = 0
    natives: int = 0
    complaints: tuple[str, ...] = ()
    check: str = "on"


def describe_inputs(inputs: Mapping[str, torch.Tensor]) -> str:
    """Names and shapes."""
    return ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in inputs.items())


class Probed(nn.Module):
    """A model whose result is a tuple of its floating tensors; in training, one loss."""

    def __init__(self, model: nn.Module, is_training: bool) -> None:
        super().__init__()
        self.model = model
        self._is_training = is_training

    def forward(self, **inputs: Any) -> Any:
        made = self.model(**inputs) if not hasattr(self.model, "positional") else self.model(*inputs.values())
        found = floats(made)
        if not self._is_training:
            return tuple(found)
        loss = getattr(made, "loss", None)
        if loss is not None and loss.dim() == 0:
            return loss
        return sum((self.weigh(tensor) for tensor in found), torch.zeros(()))

    def weigh(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a weighted mean of the elements, so that a change of any element changes it."""
        weights = torch.cos(torch.arange(tensor.numel(), dtype=torch.float32) * 0.7).reshape(tensor.shape)
        kept = torch.where(torch.isfinite(tensor), tensor.float(), torch.zeros(()))
        return (kept * weights.to(kept.dtype)).mean()


class Positional(nn.Module):
    """A model of images, called with one tensor."""

    positional = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        return self.model(x)


class Fixed(nn.Module):
    """A model with inputs that are numbers of the program, such as the sizes of its images."""

    def __init__(self, model: nn.Module, fixed: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.model = model
        self._fixed = dict(fixed)

    def forward(self, **inputs: Any) -> Any:
        return self.model(**inputs, **self._fixed)


def floats(value: Any) -> list[torch.Tensor]:
    """Return the floating tensors inside nested containers, each once."""
    found: list[torch.Tensor] = []

    def walk(item: Any) -> None:
        if isinstance(item, torch.Tensor) or type(item).__name__ == "SambaTensor":
            if item.dtype.is_floating_point and all(item is not other for other in found):
                found.append(item)
        elif isinstance(item, Mapping):
            for part in item.values():
                walk(part)
        elif isinstance(item, list | tuple):
            for part in item:
                walk(part)

    walk(value)
    return found


def still(model: nn.Module) -> nn.Module:
    """``model`` with every rate of dropout and stochastic depth at 0."""
    for module in model.modules():
        is_dropping = any(word in type(module).__name__ for word in ("Drop", "StochasticDepth"))
        for name, value in vars(module).items():
            if isinstance(value, float) and 0 < value < 1 and ("drop" in name or (is_dropping and name == "p")):
                setattr(module, name, 0.0)
    return model


def shake(model: nn.Module) -> None:
    """Move every parameter off its initial value: zeros and ones would hide what is left out."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn_like(parameter) * 0.05)


def warm_up() -> None:
    """Import what a compile imports, once for all the processes that are forked from this one."""
    from torch._functorch import partitioners  # noqa: F401

    os.environ.setdefault("RDUKIT_NODE", "private")
    former = os.environ.get("RDUKIT_KERNELS")
    os.environ["RDUKIT_KERNELS"] = "portable"
    net = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    try_stage(lambda: copy.deepcopy(net), {"input": torch.randn(2, 3)}, "training", "o3", "portable", "f32")
    if former is not None:
        os.environ["RDUKIT_KERNELS"] = former


def try_stage(
    make: Callable[[], nn.Module], inputs: Mapping[str, torch.Tensor], stage: str, mode: str, kernels: str,
    precision: str,
) -> tuple[str, str, float, "Kernels"]:  # fmt: skip
    """Return outcome, reason and largest difference of one stage, and its kernels."""
    is_training = stage == "training"
    net = Probed(still(make()), is_training).train(is_training)
    try:
        eager = run_eager(net, inputs, torch.float32, seed=1)
    except Exception as error:  # noqa: BLE001 -- what others wrote raises anything
        return "not-run", f"eager: {_line(error)}", 0.0, Kernels()
    if any(not bool(torch.isfinite(tensor).any()) for tensor in eager.outputs if tensor.numel()):
        return "not-run", "eager gives no finite number", 0.0, Kernels()
    reference = copy.deepcopy(net)
    try:
        device = _run_device(net, inputs, mode, precision)
    except RdukitError as error:
        return "refused", f"{type(error).__name__}: {error.message}", 0.0, Kernels()
    except Exception as error:  # noqa: BLE001 -- what others wrote raises anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        return "crashed", f"{_line(error)} ({Path(place.filename).name}:{place.lineno})", 0.0, Kernels()
    outcome, reason, largest_error = _judge(reference, inputs, device, eager, precision)
    if outcome == "wrong":
        other = run_eager(reference, inputs, torch.float32, seed=77)
        if any(difference(a, b) > TOLERANCE for a, b in zip(eager.outputs, other.outputs, strict=True)):
            return "random", f"its numbers are random: {reason}", largest_error, device.kernels
    return outcome, reason, largest_error, device.kernels


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


@dataclass(frozen=True, slots=True)
class Kernels:
    """Numbers of a PEF's sections that can be native and that are, and the kernel check's complaints."""

    sections: int = 0
    natives: int = 0
    complaints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Results:
    """Outputs, and in training the gradients of parameters by name; None for one that has none."""

    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor | None]
    kernels: Kernels = Kernels()


def run_eager(net: nn.Module, inputs: Mapping[str, torch.Tensor], dtype: torch.dtype, seed: int) -> Results:
    """Run a copy of ``net``, which is left as it is."""
    net = copy.deepcopy(net).to(dtype)
    given = {n: (t.to(dtype) if t.is_floating_point() else t).clone() for n, t in inputs.items()}
    torch.manual_seed(seed)
    if not net.training:
        with torch.no_grad():
            return Results([tensor.detach() for tensor in net(**given)], {})
    loss = net(**given)
    loss.backward()
    return Results([loss.detach()], {n: p.grad for n, p in net.named_parameters() if p.requires_grad})


def _run_device(net: nn.Module, inputs: Mapping[str, torch.Tensor], mode: str, precision: str) -> Results:
    _find_test_support()
    from support.programs import load_model

    tensors = _start(inputs)
    with tempfile.TemporaryDirectory(prefix="models-") as folder:
        optimizer = _make_optimizer if net.training else None
        loaded = load_model(net, tensors, Path(folder), optimizer, optim_level=mode, precision=precision)
        outputs = [tensor.data.clone() for tensor in loaded.run()]
        kernels = _count_natives(loaded.pef)
    trained = {n: p for n, p in net.named_parameters() if p.requires_grad} if net.training else {}
    gradients = {name: parameter.sn_grad for name, parameter in trained.items()}  # type: ignore[attr-defined]
    return Results(outputs, {name: None if g is None else g.data.clone() for name, g in gradients.items()}, kernels)


def compile_kernels(
    make: Callable[[], nn.Module], inputs: Mapping[str, torch.Tensor], stage: str, mode: str, precision: str
) -> dict[str, KernelGraph]:
    """Compile one stage of a model, and return the kernels by digest."""
    _find_test_support()
    from sambaflow import samba
    from support.programs import compile_model

    is_training = stage == "training"
    net = Probed(still(make()), is_training).train(is_training)
    tensors = _start(inputs)
    with tempfile.TemporaryDirectory(prefix="models-") as folder:
        samba.from_torch_model_(net)
        optimizer = _make_optimizer(net.parameters()) if is_training else None
        pef = compile_model(net, tensors, optimizer, Path(folder), optim_level=mode, precision=precision)
        return dict(read_pef(pef).kernels)


def _find_test_support() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))


def _start(inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Begin a session, and return its inputs."""
    from sambaflow import samba

    tensors = {name: samba.from_torch_tensor(tensor.clone(), name=name) for name, tensor in inputs.items()}
    samba.session.reset()
    torch.manual_seed(1)
    return tensors


def _make_optimizer(parameters: Any) -> Any:
    from sambaflow import samba

    return samba.optim.SGD([p for p in parameters if p.requires_grad], lr=0.0)


def _count_natives(pef: Path | str) -> Kernels:
    """Count the sections that have a native form, and those of them that are native."""
    from rdukit_compiler.backend.native import has_native_form

    loaded = read_pef(pef)
    sections = [
        s for s in loaded.pef.sections if s.kernel in loaded.kernels and has_native_form(loaded.kernels[s.kernel])
    ]
    verdicts: dict[str, str] = loaded.pef.metadata.get(KERNEL_CHECK, {})
    complaints = {verdicts[s.kernel] for s in sections if not verdicts.get(s.kernel, "right").startswith("right")}
    return Kernels(len(sections), sum(s.kernel in loaded.natives for s in sections), tuple(sorted(complaints)))


def _judge(
    net: nn.Module, inputs: Mapping[str, torch.Tensor], device: Results, eager: Results, precision: str
) -> tuple[str, str, float]:  # fmt: skip
    if len(eager.outputs) != len(device.outputs):
        return "wrong", f"{len(device.outputs)} outputs, eager has {len(eager.outputs)}", float("inf")
    ours, theirs = _by_name(device), _by_name(eager)
    floor = _LEAST * max((largest(g) for g in eager.gradients.values() if g is not None), default=0.0)
    tolerance = TOLERANCE if precision == "f32" else _NARROW_TOLERANCE
    errors = {name: _relative(ours.get(name), tensor, floor) for name, tensor in theirs.items()}
    far = {name: error for name, error in errors.items() if error > tolerance}
    worst = max(errors.values(), default=0.0)
    if not far:
        return "right", "", worst
    name = max(far, key=lambda n: far[n])
    if precision == "f32" and _is_as_close_as_eager(net, inputs, ours, theirs, far, floor):
        return "right", f"as far from double precision as eager is ({name}: {far[name]:.1e})", worst
    if precision != "f32" and _is_as_close_as_narrow(net, inputs, ours, theirs, far):
        return "right", f"as far from f32 as eager in bf16 is ({name}: {far[name]:.1e})", worst
    return "wrong", f"{name} is {far[name]:.1e} off ({len(far)} of {len(errors)} tensors)", worst


def _by_name(results: Results) -> dict[str, torch.Tensor | None]:
    named: dict[str, torch.Tensor | None] = {f"output {i}": tensor for i, tensor in enumerate(results.outputs)}
    return named | {f"gradient of {name}": gradient for name, gradient in results.gradients.items()}


def _relative(ours: torch.Tensor | None, theirs: torch.Tensor | None, floor: float) -> float:
    """Return the difference; that of gradients far below the model's largest is relative to ``floor``."""
    if ours is None or theirs is None:
        return largest(ours if theirs is None else theirs) / max(floor, 1e-30)
    error, size = difference(ours, theirs), largest(theirs)
    return error if error == float("inf") or size >= floor else largest(ours.double() - theirs.double()) / floor


def _is_as_close_as_eager(
    net: nn.Module, inputs: Mapping[str, torch.Tensor], ours: Mapping[str, Any], theirs: Mapping[str, Any],
    far: Mapping[str, float], floor: float,
) -> bool:  # fmt: skip
    """Return whether eager's own distances from double precision explain all large differences from eager.

    Eager also runs with each operator's result moved by its last bit. A tensor of the model counts with at least the
    median of eager's distances: rounding reaches all of them by chance.
    """
    try:
        exact = _by_name(run_eager(net, inputs, torch.float64, seed=1))
    except RuntimeError:  # something is f32 whatever the model's dtype
        return False
    runs = [theirs]
    for number in range(_MOVED_RUNS):
        with Rounding(MOVES["f32"], False, torch.Generator().manual_seed(number)):
            runs.append(_by_name(run_eager(net, inputs, torch.float32, seed=1)))
    distances = {name: max(_relative(run[name], exact[name], floor) for run in runs) for name in theirs}
    least = statistics.median(distances.values())
    return all(
        ours[name] is not None and _relative(ours[name], exact[name], floor) <= _FACTOR * max(distances[name], least)
        for name in far
    )


def _is_as_close_as_narrow(
    net: nn.Module, inputs: Mapping[str, torch.Tensor], ours: Mapping[str, Any], theirs: Mapping[str, Any],
    far: Mapping[str, float],
) -> bool:  # fmt: skip
    """Return whether the distance of eager's bf16 from its f32 explains all large differences from its f32."""
    narrow = _by_name(run_eager(net, inputs, torch.bfloat16, seed=1))
    return all(_is_explained(ours[name], theirs[name], narrow[name], theirs[name]) for name in far)


def _is_explained(
    ours: torch.Tensor | None, wanted: torch.Tensor | None, other: torch.Tensor | None, others: torch.Tensor | None
) -> bool:  # fmt: skip
    """Return whether ``ours`` is at most ``_FACTOR`` times as far from ``wanted`` as ``other`` is from ``others``."""
    if ours is None or wanted is None or other is None or others is None:
        return False
    return difference(ours, wanted) <= _FACTOR * difference(other, others)


def largest(tensor: torch.Tensor | None) -> float:
    """Return the largest magnitude."""
    return float(tensor.abs().max()) if tensor is not None and tensor.numel() else 0.0


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the largest difference over the largest magnitude; infinite if only one of two values is finite."""
    ours, theirs = ours.double(), theirs.double()
    if ours.shape != theirs.shape:
        return float("inf")
    both = torch.isfinite(ours) & torch.isfinite(theirs)
    if not bool((both | (ours == theirs) | (ours.isnan() & theirs.isnan())).all()):
        return float("inf")
    return largest(ours[both] - theirs[both]) / max(largest(theirs[both]), 1e-30)
