"""``rdukit bench threads`` from a checkout: a table; JSON or a picture if asked.

Example: python benchmarks/bench_threads.py --rounds 9 --json -o bench
"""

import sys

from rdukit_zoo.comparisons.cli import bench

if __name__ == "__main__":
    bench(["threads", *sys.argv[1:]])
