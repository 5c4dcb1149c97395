"""Tracing, seeds, comparison, measurement and weight normalization. Source: SDK reference 7.

``assert_close`` has two measures, and passes if either is within its limit.

The absolute one follows the vendor's public programs: they pass ``threshold`` for an absolute and ``rtol``
for a relative limit (one calls its variables so), use thresholds up to 3.1 for gradients, and compare the input's
gradient of a 3-D LeNet with 1e-3, where torch's own bf16 is off by several percent of the usual number. The error is
the mean of the absolute differences; a slice along any axis may have ``OUTLIER`` times as much, so that a wrong row
among thousands is found. The measure does not distinguish numbers far below the threshold from zeros.

The relative one allows for large numbers, whose rounding alone exceeds an absolute threshold: a loss of 2.3 has steps
of 0.016 in bf16. It is a measure by which bf16 passes the published thresholds and a wrong kernel does not. Rounding
leaves noise of either sign over all numbers. Where terms cancel, as in gradients of a few layers, it reaches ten times
the error of one rounding. A wrong kernel leaves a pattern: all numbers are off by one factor, a row is another's, a
term is missing everywhere. So a difference ``d`` from ``g`` is taken apart:

========  ============================================================================================================
scale     half the relative difference of energies, the sums of squares, less the part that noise explains. Its limit is
          the threshold: a scale of 1.01 fails 3e-3
shift     the mean of ``d`` over the root mean square of ``g``, less two standard deviations of the noise's share.
          Its limit is the threshold: rounding has either sign, so that correct bf16 is far below
noise     the root mean square of ``d`` over that of ``g``. Its limit is ``NOISE`` times the threshold; and its
          square, the energy, is at most the threshold
outliers  the same for every slice along every axis, over the usual magnitude there. The limit is
          ``OUTLIER`` times higher: a wrong row among thousands is not lost in the mean
========  ============================================================================================================

The largest difference over the largest magnitude fails both ways: it refuses correct bf16 by chance, the sooner the
larger a tensor is, and passes any error of small numbers next to a large one. Source: ours; the vendor's formula
is not published, its thresholds of 3e-3 to 8.5e-2 are.
"""

import json as json_module
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_json_atomic
from rdukit.pef import read_pef
from sambaflow.samba.nn.parameter import convert_parameter_
from sambaflow.samba.sambatensor import SambaTensor, unwrap
from sambaflow.sessions import current_session, loaded_pef
from sambaflow.tracing.tracer import flatten_tensors


def trace_graph(
    model: nn.Module, inputs: Any, optim: Any = None, init_output_grads: bool = True,
    loss_indices: Sequence[Any] | None = None, pef: str = "", mapping: str = "section",
    data_parallel_mode: str = "normal", transfer_device: bool = True, optimizers: Any = None, **accepted: Any,
) -> tuple[SambaTensor, ...]:  # fmt: skip
    """Trace the model, check it against the PEF, load the PEF and upload parameters, buffers and optimizer state.

    Returns:
        The traced outputs, flat; also set as ``model.output_tensors``.
    Raises:
        PefError: the PEF is missing, broken, or of another graph.
    """
    chosen = optim if optim is not None else optimizers
    return current_session().trace(
        model, inputs, chosen, pef, transfer_device=transfer_device, init_output_grads=init_output_grads,
        loss_indices=loss_indices, mapping=mapping,
    )  # fmt: skip


def init_output_grads(
    output_tensors: Any, unspecified_tensor_grad: Any = (), customized_tensors_dict: Mapping[str, Any] | None = None,
    is_variable_batch_size: bool = False,
) -> None:  # fmt: skip
    """Set the incoming gradients of traced outputs: by name from the dict, ones for all others.

    Args:
        unspecified_tensor_grad: gradients for the outputs that the dict lacks, in order, instead of ones.
    """
    given = dict(customized_tensors_dict or {})
    rest = iter(unspecified_tensor_grad)
    for output in flatten_tensors(output_tensors):
        name = output.sn_name
        gradient = given[name] if name in given else next(rest, None)
        output.sn_grad = torch.ones(tuple(output.shape)) if gradient is None else gradient


def get_rank() -> int:
    """Return this process's rank; 0 when not distributed."""
    return torch.distributed.get_rank() if _is_distributed() else 0


def get_world_size() -> int:
    """Return the number of processes of the job; 1 when not distributed."""
    return torch.distributed.get_world_size() if _is_distributed() else 1


def get_finished_steps() -> int:
    """Return the steps that the other ranks had finished when this process took a lost rank's place; 0 otherwise.

    A program begins its loop there, if it may be a replacement (``distributed.on_loss=replace``). Call it before the
    first run. Source: ours.
    """
    from rdukit_runtime.collectives.replacement import find_joining

    joining = find_joining()
    return 0 if joining is None else joining.offer.steps


def is_main_process() -> bool:
    """Return whether this is rank 0."""
    return get_rank() == 0


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def set_seed(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def get_file_dir(file: str) -> str:
    """Return the absolute folder of ``file``; programs pass ``__file__``."""
    return str(Path(file).resolve().parent)


def assert_close(
    a: Any, b: Any, name: str = "tensor", threshold: float = 3e-3, rtol: float | None = None, visualize: bool = False
) -> None:
    """Compare two tensors, in any order: by ``absolute_error``, and by ``closeness_error`` relative to their size.

    One of the two must be within its limit: ``threshold`` for the absolute one, ``rtol`` for the relative one (default:
    ``threshold``). Source: ours; the vendor's formula is not published, its thresholds are, and only an absolute
    measure lets its own programs pass (docs/decisions).

    Raises:
        AssertionError: their numbers of elements differ, or both errors exceed their limits.
    """
    first, second = (torch.as_tensor(unwrap(x)).detach() for x in (a, b))
    if first.numel() != second.numel():
        raise AssertionError(f"{name}: the shapes {list(first.shape)} and {list(second.shape)} differ")
    limit = threshold if rtol is None else rtol
    absolute, relative = (
        (measure(first, second.reshape(first.shape)) if first.numel() else 0.0)
        for measure in (absolute_error, closeness_error)
    )
    found = f"absolute error {absolute:.3e} (limit {threshold:.1e}), relative error {relative:.3e} (limit {limit:.1e})"
    print(f"{name}: {found}")
    if not (absolute <= threshold or relative <= limit):
        raise AssertionError(f"{name}: {found}: neither is within its limit")


def measure_performance(
    model: nn.Module, inputs: Any, batch_size: int, n_chips: int = 1, inference: bool = False,
    run_graph_only: bool = False, n_iterations: int = 100, json: str | None = None, min_duration: float = 0.0,
    data_parallel: bool = False, world_size: int | None = None, compiled_stats_json: str | None = None,
    **accepted: Any,
) -> tuple[float, float]:  # fmt: skip
    """Run the traced graph repeatedly and print throughput and latency of this host, or of this rank.

    Returns:
        (samples a second, seconds a step).
    """
    sections = ["fwd"] if inference else None
    if not inference and loaded_pef().replicas.can_reduce and (not data_parallel or (world_size or 1) < 2):
        print("[warning Samba] the PEF is data parallel: measure with --data-parallel --world-size N to include reduce")
    runs = 0
    began = time.perf_counter()
    while runs < n_iterations or time.perf_counter() - began < min_duration:
        current_session().run(
            inputs if not run_graph_only else None, None, data_parallel=data_parallel, section_types=sections
        )
        runs += 1
    seconds = (time.perf_counter() - began) / runs
    throughput = batch_size * n_chips / seconds
    print(f"e2e_throughput: {throughput:.4f} samples/s, measured over {runs} iterations.")
    print(f"e2e_latency: {seconds:.6f} s")
    report = current_session().report()
    print(f"projected RDU latency (emulated): {report['emulated_seconds'] / max(report['runs'], 1):.6f} s")
    if json:
        Path(json).write_text(json_module.dumps({"throughput": throughput, "latency_s": seconds, "iterations": runs}))
    if compiled_stats_json:
        create_mac_resource_report(current_session().pef_path, compiled_stats_json)
    return throughput, seconds


#: Limit of the noise as a multiple of the threshold, and of a slice's noise as a multiple of the usual noise. Fewer
#: than ``MANY`` numbers have lower limits: the difference of a single one is compared with the threshold itself.
NOISE: Final = 6.0
OUTLIER: Final = 4.0
MANY: Final = 16


def absolute_error(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the mean absolute difference, or the largest of a slice, divided by ``OUTLIER``, if that is larger.

    The result is infinity if a number is not finite in only one of them; numbers that are infinite or NaN in both are
    equal.
    """
    a, b = (tensor.detach().to(torch.float64) for tensor in (first, second))
    if (a.isfinite() != b.isfinite()).any() or ((a != b) & a.isinf()).any():
        return float("inf")
    apart = (a.nan_to_num(0.0, 0.0, 0.0) - b.nan_to_num(0.0, 0.0, 0.0)).abs()
    others = [tuple(other for other in range(apart.dim()) if other != dim) for dim in range(apart.dim())]
    slices = [float((apart.mean(dims) if dims else apart).max()) for dims in others]
    return max(float(apart.mean()), max(slices, default=0.0) / OUTLIER)


def closeness_error(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the error between two tensors of one shape, in any order, to be compared with a threshold.

    The result is infinity if a number is not finite in only one of them; numbers that are infinite or NaN in both are
    equal.
    """
    a, b = (tensor.detach().to(torch.float64) for tensor in (first, second))
    if (a.isfinite() != b.isfinite()).any() or ((a != b) & a.isinf()).any():
        return float("inf")
    a, b = (tensor.nan_to_num(0.0, 0.0, 0.0) for tensor in (a, b))
    if torch.equal(a, b):
        return 0.0
    apart, magnitude = a - b, torch.maximum(a.abs(), b.abs())
    usual = _root_mean_square(magnitude)
    noise = float(_root_mean_square(apart) / usual)
    slices = [_slices(apart, dim) / _slices(magnitude, dim).clamp_min(usual) for dim in range(a.dim())]
    worst = max((float(each.max()) for each in slices), default=0.0)
    allowed = max(1.0, NOISE * min(1.0, (a.numel() / MANY) ** 0.5))
    shift: float = max(0.0, float(apart.mean().abs() / usual) - 2 * noise / a.numel() ** 0.5)
    return max(_counted(noise, allowed), _counted(worst, allowed) / OUTLIER, _scale_error(a, b, noise), shift)


def _counted(noise: float, allowed: float) -> float:
    """Return the threshold that this noise needs."""
    return max(noise / allowed, noise**2)


def _scale_error(a: torch.Tensor, b: torch.Tensor, noise: float) -> float:
    """Return the difference of the tensors' scale factor from 1, less two standard deviations of the noise's share."""
    energy = max(float((a * a).sum()), float((b * b).sum()))
    off = abs(float((a * a).sum() - (b * b).sum())) / 2 / energy
    return off if a.numel() == 1 else max(0.0, off - 2 * noise / a.numel() ** 0.5)


def _root_mean_square(tensor: torch.Tensor, dims: tuple[int, ...] = ()) -> torch.Tensor:
    return tensor.square().mean(dims).sqrt() if dims else tensor.square().mean().sqrt()


def _slices(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the root mean square of each slice along ``dim``."""
    others = tuple(d for d in range(tensor.dim()) if d != dim)
    return _root_mean_square(tensor, others) if others else tensor.abs()


def measure_sections(
    model: nn.Module, inputs: Any, num_sections: int | None = None, n_iterations: int = 100, batch_size: int = 1,
    data_parallel: bool = False, reduce_on_rdu: bool = False, json: str | None = None, min_duration: float = 0.0,
    section_types: Sequence[str] | None = None, **accepted: Any,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Run the traced graph and print each section's mean seconds: measured on this host, and projected for the chip.

    Returns:
        By section name: ``id``, ``type``, ``host_seconds``, ``emulated_seconds``, of one run.
    """
    import json as json_module
    import time

    began, runs = time.perf_counter(), 0
    current_session().start_runtime_profile()
    while runs < n_iterations or time.perf_counter() - began < min_duration:
        current_session().run(
            inputs, None, data_parallel=data_parallel, reduce_on_rdu=reduce_on_rdu, section_types=section_types
        )
        runs += 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        current_session().end_runtime_profile(path)
        profile = json_module.loads(path.read_text())
    found = {
        str(s["name"]): {
            "id": s["id"], "type": s["type"],
            "host_seconds": s["host_seconds"] / s["runs"], "emulated_seconds": s["emulated_seconds"] / s["runs"],
        }
        for s in profile["sections"][:num_sections]
    }  # fmt: skip
    for name, row in found.items():
        print(f"{name}: {row['host_seconds']:.6f} s here, {row['emulated_seconds']:.6f} s projected (emulated)")
    if json:
        write_json_atomic(Path(json), found)
    return found


def create_mac_resource_report(pef: str, path: str | None = None, **accepted: Any) -> dict[str, dict[str, Any]]:
    """Return the resources that the compiler gave each section of a PEF; written to ``path`` as JSON if given.

    Raises:
        PefError: the PEF is missing or cannot be read.
    """
    report = {
        section.name: {
            "tiles": section.resources.tiles, "pcus": section.resources.pcus, "pmus": section.resources.pmus,
            "sram_bytes": section.resources.sram_bytes, "projected_seconds": section.cost.seconds,
        }
        for section in read_pef(pef).pef.sections
    }  # fmt: skip
    if path:
        write_json_atomic(Path(path), report)
    return report


def trace_multigraph(model: nn.Module, inputs: Any, trace_prefix: str = "") -> tuple[SambaTensor, ...]:
    """Trace a converted model, in addition to earlier traces; graphs will be cut from them.

    Args:
        inputs: named SambaTensors: one, a tuple or list of positional arguments, or a dict of keyword arguments; nested
            as forward takes them; other values may be among them.
        trace_prefix: prefix of generated names, so that one module can be traced several times.
    Returns:
        The outputs, flat in depth-first order (dicts in value order); also set as ``model.output_tensors``. Source: SDK
        reference 12.1.
    Raises:
        TraceError: forward cannot be traced, or a name stands for two different tensors.
    """
    return current_session().trace_multigraph(model, inputs, trace_prefix)


def weight_norm_(layer: nn.Module, name: str = "weight", dim: int = 0) -> nn.Module:
    """Replace ``weight`` by ``weight_magnitude`` and ``weight_direction``.

    The weight is magnitude * direction / |direction|; norms are over all dims except ``dim``. Returns the layer. A
    converted layer's new parameters are also converted: their names are the weight's with these endings.

    Raises:
        InvalidArgument: the layer lacks the parameter.
    """
    weight = layer._parameters.get(name)
    if weight is None:
        raise InvalidArgument(f"{type(layer).__name__} has no parameter {name!r}; it has {list(layer._parameters)}")
    del layer._parameters[name]
    for ending, value in {"magnitude": _norm(weight.data, dim), "direction": weight.data.clone()}.items():
        added = nn.Parameter(value, weight.requires_grad)
        layer.register_parameter(f"{name}_{ending}", added)
        if converted := getattr(weight, "sn_name", ""):
            convert_parameter_(added, f"{converted}_{ending}")
    hook = _WeightNorm(name, dim)
    layer.register_forward_pre_hook(hook.compute)
    layer.register_forward_hook(hook.forget)
    return layer


class _WeightNorm:
    """Computes the weight and sets it while forward runs."""

    def __init__(self, name: str, dim: int) -> None:
        self.name, self.dim = name, dim

    def compute(self, module: nn.Module, args: Any) -> None:
        direction = getattr(module, f"{self.name}_direction")
        magnitude = getattr(module, f"{self.name}_magnitude")
        module.__dict__[self.name] = magnitude * direction / _norm(direction, self.dim)

    def forget(self, module: nn.Module, args: Any, output: Any) -> None:
        module.__dict__.pop(self.name, None)


def _norm(weight: Any, dim: int) -> torch.Tensor:
    others = [d for d in range(weight.dim()) if d != dim % weight.dim()]
    made: torch.Tensor = (weight * weight).sum(others, keepdim=True).sqrt()
    return made
