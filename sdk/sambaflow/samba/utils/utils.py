"""Tracing and small helpers. Source: SDK reference 7."""

import json as json_module
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sambaflow.samba.sambatensor import SambaTensor, unwrap
from sambaflow.samba.tracer import flatten_tensors
from sambaflow.samba.utils.closeness import closeness_error
from sambaflow.samba.utils.sections import create_mac_resource_report


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
    from sambaflow import samba

    chosen = optim if optim is not None else optimizers
    return samba.session.trace(
        model, inputs, chosen, pef, transfer_device=transfer_device, init_output_grads=init_output_grads,
        loss_indices=loss_indices, mapping=mapping,
    )  # fmt: skip


def init_output_grads(
    output_tensors: Any, unspecified_tensor_grad: Any = (), customized_tensors_dict: Mapping[str, Any] | None = None,
    is_variable_batch_size: bool = False,
) -> None:  # fmt: skip
    """Set the incoming gradients of traced outputs: those in the dict by name, ones for all others.

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
    """This process's rank; 0 when not distributed."""
    return torch.distributed.get_rank() if _is_distributed() else 0


def get_world_size() -> int:
    """Processes of the job; 1 when not distributed."""
    return torch.distributed.get_world_size() if _is_distributed() else 1


def is_main_process() -> bool:
    """Whether this is rank 0."""
    return get_rank() == 0


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def set_seed(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def get_file_dir(file: str) -> str:
    """Absolute folder of ``file``; programs pass ``__file__``."""
    return str(Path(file).resolve().parent)


def assert_close(
    a: Any, b: Any, name: str = "tensor", threshold: float = 3e-3, rtol: float | None = None, visualize: bool = False
) -> None:
    """Compare two tensors, in any order, by ``closeness_error``: it tells a wrong kernel from bf16's rounding.

    Source: ours; the vendor's formula is not published, its thresholds are.

    Raises:
        AssertionError: their numbers of elements differ, or the error exceeds ``threshold`` (or ``rtol``).
    """
    first, second = (torch.as_tensor(unwrap(x)).detach() for x in (a, b))
    if first.numel() != second.numel():
        raise AssertionError(f"{name}: the shapes {list(first.shape)} and {list(second.shape)} differ")
    limit = threshold if rtol is None else rtol
    error = closeness_error(first, second.reshape(first.shape)) if first.numel() else 0.0
    print(f"{name}: relative error {error:.3e} (limit {limit:.1e})")
    if not error <= limit:
        raise AssertionError(f"{name}: relative error {error:.3e} exceeds {limit:.1e}")


def measure_performance(
    model: nn.Module, inputs: Any, batch_size: int, n_chips: int = 1, inference: bool = False,
    run_graph_only: bool = False, n_iterations: int = 100, json: str | None = None, min_duration: float = 0.0,
    data_parallel: bool = False, world_size: int | None = None, compiled_stats_json: str | None = None,
    **accepted: Any,
) -> tuple[float, float]:  # fmt: skip
    """Run the traced graph repeatedly and print throughput and latency of this host; of this rank, if there are more.

    Returns:
        (samples a second, seconds a step).
    """
    from sambaflow import samba

    sections = ["fwd"] if inference else None
    if not inference and samba.session.averages_gradients and (not data_parallel or (world_size or 1) < 2):
        print("[warning Samba] the PEF is data parallel: measure with --data-parallel --world-size N to include reduce")
    runs = 0
    began = time.perf_counter()
    while runs < n_iterations or time.perf_counter() - began < min_duration:
        samba.session.run(
            inputs if not run_graph_only else None, None, data_parallel=data_parallel, section_types=sections
        )
        runs += 1
    seconds = (time.perf_counter() - began) / runs
    throughput = batch_size * n_chips / seconds
    print(f"e2e_throughput: {throughput:.4f} samples/s, measured over {runs} iterations.")
    print(f"e2e_latency: {seconds:.6f} s")
    report = samba.session.report()
    print(f"projected RDU latency (emulated): {report['emulated_seconds'] / max(report['runs'], 1):.6f} s")
    if json:
        Path(json).write_text(json_module.dumps({"throughput": throughput, "latency_s": seconds, "iterations": runs}))
    if compiled_stats_json:
        create_mac_resource_report(samba.session.pef_path, compiled_stats_json)
    return throughput, seconds
