"""``common_app_driver``: handles every command that a program does not handle itself.

Source: SDK reference 7.3.
"""

from typing import Any

from torch import nn

from sambaflow.samba.sambatensor import unwrap
from sambaflow.samba.utils.tensorboard_debug import host_outputs
from sambaflow.samba.utils.utils import assert_close, measure_performance, measure_sections, trace_graph
from sambaflow.sessions import current_session
from sambaflow.sessions.data_parallel import is_switched_on


def common_app_driver(
    args: Any, model: nn.Module, inputs: Any, optim: Any = None, name: str | None = None, app_dir: str | None = None,
    squeeze_bs_dim: bool = False, init_output_grads: bool = True, metadata: Any = None, **accepted: Any,
) -> Any:  # fmt: skip
    """Compile, test, measure or run a model, according to ``args.command``."""
    inference = bool(getattr(args, "inference", False)) or optim is None
    chosen = None if inference else optim
    is_replica = is_switched_on(getattr(args, "data_parallel", False))
    if args.command == "compile":
        return current_session().compile(
            model, inputs, chosen, name=name, app_dir=app_dir, init_output_grads=init_output_grads,
            inference=inference, config_dict=vars(args), pef_metadata=metadata if isinstance(metadata, dict) else None,
        )  # fmt: skip
    traced = trace_graph(
        model, inputs, chosen, pef=args.pef, init_output_grads=init_output_grads,
        mapping=getattr(args, "mapping", "section"),
    )  # fmt: skip
    if args.command == "measure-sections":
        return measure_sections(
            model, inputs, num_sections=args.num_sections, n_iterations=args.num_iterations,
            batch_size=args.batch_size, data_parallel=is_replica, json=args.json, min_duration=args.min_duration,
            section_types=["fwd"] if inference else None,
        )  # fmt: skip
    if args.command == "measure-performance":
        return measure_performance(
            model, inputs, args.batch_size, inference=inference, run_graph_only=args.run_graph_only,
            n_iterations=args.num_iterations, json=args.json or args.bench_report_json,
            min_duration=args.min_duration, compiled_stats_json=args.compiled_stats_json,
            data_parallel=is_replica, world_size=getattr(args, "world_size", None),
        )  # fmt: skip
    if args.command == "test":
        return _compare_with_host(model, inputs, traced)
    outputs: Any = None
    for _ in range(args.num_iterations):
        outputs = current_session().run(
            inputs, traced, data_parallel=is_replica, section_types=["fwd"] if inference else None
        )
    return outputs


def _compare_with_host(model: nn.Module, inputs: Any, traced: Any) -> None:
    """Run forward on host and device, and compare each output."""
    device = current_session().run(inputs, traced, section_types=["fwd"])
    for output, gold in zip(device, host_outputs(model, inputs), strict=True):
        made = unwrap(output)
        if gold.numel() == 1 and made.numel() > 1:  # a mean loss for each batch of a spatial call
            made = made.float().mean()
        assert_close(made, gold, output.sn_name, threshold=3e-2)
