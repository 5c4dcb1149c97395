"""``rdukit bench training_step`` from a checkout: a table; JSON or a picture if asked.

Example: python benchmarks/bench_training.py --rounds 9 --json -o bench
"""

import sys

from rdukit_zoo.comparisons.cli import bench

if __name__ == "__main__":
    bench(["training_step", *sys.argv[1:]])
