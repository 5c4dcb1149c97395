"""Try the functions of public reports with ``torch.compile``: ``scripts/upstream_reports.py [NUMBER…]``.

Prints each case of ``tests/support/upstream_reports.py`` whose name begins with one of the numbers (default all), and
whether the pinned torch computes it as without its compiler: right, wrong, or which error. Takes seconds for each.
"""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch

from support.built_kernels import agree
from support.upstream_reports import REPORTS


def flat(made: object) -> list[torch.Tensor]:
    """Return what a function gave as a list."""
    return list(made) if isinstance(made, list | tuple) else [made]  # type: ignore[list-item]


def try_report(name: str) -> str:
    """Return what comes of a case: ``right``, ``wrong`` or an error's name."""
    function, inputs = REPORTS[name]
    expected = flat(function(*(t.clone() for t in inputs)))
    torch.compiler.reset()
    try:
        found = flat(torch.compile(function)(*(t.clone() for t in inputs)))
    except Exception as cause:  # noqa: BLE001 - whatever the compiler makes of it
        return type(cause).__name__
    tolerance = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float64: 1e-12}
    same = all(agree(a, b, tolerance.get(b.dtype, 3e-5)) for a, b in zip(found, expected, strict=True))
    return "right" if same else "wrong"


def main() -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in REPORTS:
        if not sys.argv[1:] or name.startswith(tuple(sys.argv[1:])):
            print(f"{try_report(name):8s} {name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
