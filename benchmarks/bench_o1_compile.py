"""``rdukit bench o1_compile`` from a checkout: a table; JSON or a picture if asked.

Example: python benchmarks/bench_o1_compile.py --json -o bench
"""

import sys

from rdukit_zoo.comparisons.cli import bench

if __name__ == "__main__":
    bench(["o1_compile", *sys.argv[1:]])
