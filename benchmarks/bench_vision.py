"""ViT-S and a U-Net against torch and ONNX Runtime, in one run.

The comparison ``vision`` of ``rdukit bench``, with its options. ::

    python benchmarks/bench_vision.py [--rounds 9] [--quick] [--json] [-o DIR]
"""

import sys

from rdukit_zoo.comparisons.cli import bench

if __name__ == "__main__":
    bench(["vision", *sys.argv[1:]])
