"""One comparison in a process of its own: its rows to stdout as JSON lines, everything else to stderr.

``python -m rdukit_zoo.comparisons.child NAME OPTIONS PARENT`` with the options as JSON; started by ``runner.py``, whose
process it does not outlive.
"""

import json
import os
import sys

from rdukit.cli import exit_on_error
from rdukit.system.process import die_with_parent
from rdukit_zoo.comparisons.model import Options, get_comparison


def main(name: str, options: Options) -> None:
    """Run the comparison; compilers and peers that print do not mix with the rows."""
    import torch

    rows = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(options.threads)
    for row in get_comparison(name)(options):
        rows.write(json.dumps(row.body()) + "\n")


if __name__ == "__main__":
    die_with_parent(int(sys.argv[3]))
    with exit_on_error():
        main(sys.argv[1], Options(**json.loads(sys.argv[2])))
