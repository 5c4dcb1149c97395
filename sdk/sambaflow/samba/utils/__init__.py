"""Utilities that programs use: tracing, seeds, comparison, the command line, PEF metadata."""

from sambaflow.samba.utils import argparser, benchmark_acc, common, dataset, pef_utils, utils
from sambaflow.samba.utils.multigraph import trace_multigraph
from sambaflow.samba.utils.sections import create_mac_resource_report, measure_sections
from sambaflow.samba.utils.sntype import SNType
from sambaflow.samba.utils.utils import (
    assert_close,
    get_file_dir,
    get_rank,
    get_world_size,
    init_output_grads,
    is_main_process,
    measure_performance,
    set_seed,
    trace_graph,
)
from sambaflow.samba.utils.weight_norm import weight_norm_

__all__ = [
    "SNType",
    "argparser",
    "assert_close",
    "benchmark_acc",
    "common",
    "create_mac_resource_report",
    "dataset",
    "get_file_dir",
    "get_rank",
    "get_world_size",
    "init_output_grads",
    "is_main_process",
    "measure_performance",
    "measure_sections",
    "pef_utils",
    "set_seed",
    "trace_graph",
    "trace_multigraph",
    "utils",
    "weight_norm_",
]
