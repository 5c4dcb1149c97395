"""``rdukit bench section_call`` from a checkout: a table; JSON or a picture if asked.

Example: python benchmarks/bench_section_call.py --json -o bench
"""

import sys

from rdukit_zoo.comparisons.cli import bench

if __name__ == "__main__":
    bench(["section_call", *sys.argv[1:]])
