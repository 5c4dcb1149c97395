"""The comparison ``vision`` alone, as ``rdukit bench vision`` runs it: table, and JSON or a picture if asked. ::

    python benchmarks/bench_vision.py [--rounds 9] [--quick] [--json] [-o DIR]
"""

import sys

from rdukit_zoo.comparisons.cli import bench

if __name__ == "__main__":
    bench(["vision", *sys.argv[1:]])
