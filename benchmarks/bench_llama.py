"""The comparison ``llama`` alone, as ``rdukit bench llama`` runs it: table, and JSON or a picture if asked. ::

    python benchmarks/bench_llama.py [--rounds 9] [--quick] [--json] [-o DIR]
"""

import sys

from rdukit_zoo.comparisons.cli import bench

if __name__ == "__main__":
    bench(["llama", *sys.argv[1:]])
