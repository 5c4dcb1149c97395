"""Utilities that programs use: tracing, seeds, comparison, the command line, PEF metadata."""

from sambaflow.samba.utils import argparser, benchmark_acc, common, dataset, pef_utils, utils
from sambaflow.samba.utils.numeric import SNType, parse_dtype
from sambaflow.samba.utils.utils import (
    assert_close,
    create_mac_resource_report,
    get_file_dir,
    get_finished_steps,
    get_rank,
    get_world_size,
    init_output_grads,
    is_main_process,
    measure_performance,
    measure_sections,
    set_seed,
    trace_graph,
    trace_multigraph,
    weight_norm_,
)

__all__ = [
    "SNType",
    "argparser",
    "assert_close",
    "benchmark_acc",
    "common",
    "create_mac_resource_report",
    "dataset",
    "get_file_dir",
    "get_finished_steps",
    "get_rank",
    "get_world_size",
    "init_output_grads",
    "is_main_process",
    "measure_performance",
    "measure_sections",
    "parse_dtype",
    "pef_utils",
    "set_seed",
    "trace_graph",
    "trace_multigraph",
    "utils",
    "weight_norm_",
]
