"""``rdukit bench training_memory`` from a checkout: a table; JSON or a picture if asked.

Example: python benchmarks/bench_training_memory.py --rounds 9 --json -o bench
"""

import sys

from rdukit_zoo.comparisons.cli import bench

if __name__ == "__main__":
    bench(["training_memory", *sys.argv[1:]])
