"""Utilities that programs use: tracing, seeds, comparison, the command line, PEF metadata."""

from sambaflow.samba.utils import argparser, common, dataset, pef_utils, utils
from sambaflow.samba.utils.utils import assert_close, get_file_dir, measure_performance, set_seed, trace_graph

__all__ = [
    "argparser",
    "assert_close",
    "common",
    "dataset",
    "get_file_dir",
    "measure_performance",
    "pef_utils",
    "set_seed",
    "trace_graph",
    "utils",
]
