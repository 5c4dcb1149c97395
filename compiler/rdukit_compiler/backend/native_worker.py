"""A process that builds native kernels: kernel paths in on stdin, results out on stdout, one a line.

Run as ``python -m rdukit_compiler.backend.native_worker``. A process of its own keeps inductor and its settings out of
the user's program, and lets several kernels be built at once.
"""

import json
import logging
import os
import sys
import warnings
from pathlib import Path

from rdukit.files import write_atomic
from rdukit.pef.kernel import kernel_from_json

#: Argument of a worker that builds many kernels.
SHARE_HEADERS = "--share-headers"


def main() -> None:
    """Serve until stdin closes. Request: ``<kernel file>\\t<library to write>``; answer: JSON, ``error`` or null."""
    share_headers = SHARE_HEADERS in sys.argv
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever inductor prints goes to stderr
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    for line in sys.stdin:
        source, target = line.rstrip("\n").split("\t")
        error = None
        try:
            _build(Path(source), Path(target), share_headers)
        except Exception as cause:  # noqa: BLE001 - the border of the process: every failure is reported
            error = f"{type(cause).__name__}: {str(cause).splitlines()[0] if str(cause) else ''}"
        answers.write(json.dumps({"target": target, "error": error}) + "\n")
        answers.flush()


def _build(source: Path, target: Path, share_headers: bool) -> None:
    from rdukit_compiler.backend.kernel_graph import example_inputs, fx_from_kernel
    from rdukit_compiler.backend.torch_private import build_library

    kernel = kernel_from_json(source.read_bytes())
    library = build_library(fx_from_kernel(kernel), example_inputs(kernel), share_headers)
    write_atomic(target, library.read_bytes(), mode=0o644)


if __name__ == "__main__":
    main()
