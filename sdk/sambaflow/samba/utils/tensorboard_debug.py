"""Differences between device and host. Source: SDK reference 7.5 (only its name and arguments are public)."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from rdukit.files.atomic import write_json_atomic
from sambaflow.samba.sambatensor import unwrap
from sambaflow.sessions import current_session
from sambaflow.tracing.tracer import _call_arguments, flatten_tensors


def dump_accuracy_debug_info(args: Any, model: nn.Module, inputs: Any, traced_outputs: Any) -> Path:
    """Run forward on host and device, and write each output's maximum and mean difference as JSON; return the file.

    The file is ``accuracy_debug.json`` in ``args.log_dir``, otherwise in the output folder. Source: ours.
    """
    device = current_session().run(inputs, traced_outputs, section_types=["fwd"])
    host = host_outputs(model, inputs)
    rows = {}
    for output, gold in zip(device, host, strict=True):
        difference = (unwrap(output).double().reshape(-1) - gold.double().reshape(-1)).abs()
        rows[output.sn_name] = {
            "shape": list(gold.shape),
            "max_abs_gold": gold.double().abs().max().item(),
            "max_abs_difference": difference.max().item(),
            "mean_abs_difference": difference.mean().item(),
        }
    folder = getattr(args, "log_dir", None) or getattr(args, "output_folder", None) or "out"
    path = Path(str(folder)) / "accuracy_debug.json"
    write_json_atomic(path, rows)
    return path


def host_outputs(model: nn.Module, inputs: Any) -> list[torch.Tensor]:
    """Return the model's outputs on the host as a flat list."""
    positional, named = _call_arguments(inputs, lambda tensor: tensor)
    with torch.no_grad():
        return [unwrap(tensor).detach() for tensor in flatten_tensors(model(*positional, **named))]


__all__ = ["dump_accuracy_debug_info", "host_outputs"]
