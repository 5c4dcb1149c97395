"""A Llama against torch and llama.cpp, in one run.

The comparison ``llama`` of ``rdukit bench``, with its options. ::

    python benchmarks/bench_llama.py [--rounds 9] [--quick] [--json] [-o DIR]
"""

import sys

from rdukit_zoo.comparisons.cli import bench

if __name__ == "__main__":
    bench(["llama", *sys.argv[1:]])
