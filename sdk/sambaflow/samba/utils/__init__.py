"""Utilities that programs use: tracing, seeds, comparison, the command line, PEF metadata."""

from sambaflow.samba.utils import argparser, benchmark_acc, common, dataset, pef_utils, utils
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

__all__ = [
    "argparser",
    "assert_close",
    "benchmark_acc",
    "common",
    "dataset",
    "get_file_dir",
    "get_rank",
    "get_world_size",
    "init_output_grads",
    "is_main_process",
    "measure_performance",
    "pef_utils",
    "set_seed",
    "trace_graph",
    "utils",
]
