"""``common_app_driver``: what a program calls for every command that it does not treat itself.

Source: SDK reference 7.3.
"""

from typing import Any

import torch
from torch import nn

from sambaflow.samba.sambatensor import unwrap
from sambaflow.samba.tracer import flatten_tensors
from sambaflow.samba.utils.utils import assert_close, measure_performance, trace_graph


def common_app_driver(
    args: Any, model: nn.Module, inputs: Any, optim: Any = None, name: str | None = None, app_dir: str | None = None,
    squeeze_bs_dim: bool = False, init_output_grads: bool = True, metadata: Any = None, **accepted: Any,
) -> Any:  # fmt: skip
    """Compile, test, measure or run a model, as ``args.command`` says."""
    from sambaflow import samba

    inference = bool(getattr(args, "inference", False)) or optim is None
    chosen = None if inference else optim
    if args.command == "compile":
        return samba.session.compile(
            model, inputs, chosen, name=name, app_dir=app_dir, init_output_grads=init_output_grads,
            inference=inference, config_dict=vars(args), pef_metadata=metadata if isinstance(metadata, dict) else None,
        )  # fmt: skip
    traced = trace_graph(model, inputs, chosen, pef=args.pef, init_output_grads=init_output_grads)
    if args.command in {"measure-performance", "measure-sections"}:
        return measure_performance(
            model, inputs, args.batch_size, inference=inference, run_graph_only=args.run_graph_only,
            n_iterations=args.num_iterations, json=args.json, min_duration=args.min_duration,
        )  # fmt: skip
    if args.command == "test":
        return _compare_with_host(model, inputs, traced)
    outputs: Any = None
    for _ in range(args.num_iterations):
        outputs = samba.session.run(inputs, traced, section_types=["fwd"] if inference else None)
    return outputs


def _compare_with_host(model: nn.Module, inputs: Any, traced: Any) -> None:
    """Run forward on both and compare each output."""
    from sambaflow import samba

    device = samba.session.run(inputs, traced, section_types=["fwd"])
    with torch.no_grad():
        host = model(**inputs) if isinstance(inputs, dict) else model(*flatten_tensors(inputs))
    for output, gold in zip(device, flatten_tensors(host), strict=True):
        assert_close(output, unwrap(gold), output.sn_name, threshold=3e-2)
