"""One training process of the memory comparison: how far its memory grew at most, as JSON.

``ours CASE PEF`` or ``eager CASE``. Counted from the end of all imports: the module's parameters on the host, device
memory with its parameters, gradients, optimizer states, activations, and whatever the run allocates beside them. Pages
of shared memory count like any other.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from rdukit_zoo.comparisons.training import Step, our_step, peer_step
from rdukit_zoo.comparisons.training_cases import get_case, make_case

STEPS = 3
_MB = 1e6


def main(kind: str, name: str, pef: str = "") -> dict[str, float]:
    """Train ``STEPS`` steps. Figures in MB: parameters, growth of the peak since the imports and since the build."""
    case = get_case(name)
    imported = read_status("VmRSS")
    module, batch = make_case(case)
    built = read_status("VmRSS")
    make: dict[str, Callable[[], Step]] = {
        "ours": lambda: our_step(case, module, batch, Path(pef).parent, pef),
        "eager": lambda: peer_step(module, batch, fused=True),
    }
    parameters = sum(p.numel() * p.element_size() for p in module.parameters())
    reset_peak()
    step = make[kind]()
    for _ in range(STEPS):
        loss = float(step())
    peak = read_status("VmHWM")
    return {"parameters": parameters / _MB, "peak": (peak - imported) / _MB, "beyond": (peak - built) / _MB,
            "loss": loss}  # fmt: skip


def read_status(field: str) -> int:
    """Bytes of a field of this process's Linux status."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) * 1024


def reset_peak() -> None:
    """Forget the peak so far: building a module may have needed more than it keeps."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main(*sys.argv[1:])))
