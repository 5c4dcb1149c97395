"""``rdukit bench first_call`` from a checkout: a table; JSON or a picture if asked.

Example: python benchmarks/bench_first_call.py --rounds 9 --json -o bench
"""

import sys

from rdukit_zoo.comparisons.cli import bench

if __name__ == "__main__":
    bench(["first_call", *sys.argv[1:]])
