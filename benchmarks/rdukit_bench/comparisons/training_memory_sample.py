"""One training process of the memory comparison: how far its memory grew at most, as JSON.

``ours CASE PEF``, ``eager CASE`` or ``autocast CASE``. Counted from the end of all imports: the module's parameters on
the host, device memory with its parameters, gradients, optimizer states, activations, and whatever the run allocates
beside them. Pages of shared memory count like any other.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from rdukit_bench.comparisons.training_cases import Step, get_case, make_case, our_step, peer_step

STEPS = 3
#: Of autocast: a processor without bf16 instructions takes a minute a step, and the second one has all there is.
AUTOCAST_STEPS = 2
_MB = 1e6


def main(kind: str, name: str, pef: str = "") -> dict[str, float]:
    """Train a few steps. Figures in MB: parameters, growth of the peak since the imports and since the build."""
    case = get_case(name)
    imported = read_status("VmRSS")
    module, batch = make_case(case)
    built = read_status("VmRSS")
    make: dict[str, Callable[[], Step]] = {
        "ours": lambda: our_step(case, module, batch, Path(pef).parent, pef),
        "eager": lambda: peer_step(module, batch, fused=True),
        "autocast": lambda: peer_step(Autocast(module), batch, fused=True),
    }
    parameters = sum(p.numel() * p.element_size() for p in module.parameters())
    reset_peak()
    step = make[kind]()
    for _ in range(AUTOCAST_STEPS if kind == "autocast" else STEPS):
        loss = float(step())
    peak = read_status("VmHWM")
    return {"parameters": parameters / _MB, "peak": (peak - imported) / _MB, "beyond": (peak - built) / _MB,
            "loss": loss}  # fmt: skip


class Autocast(nn.Module):
    """A module whose forward runs under torch's autocast to bf16; its parameters stay f32."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made: torch.Tensor = self.module(*batch)
        return made


def read_status(field: str) -> int:
    """Return the bytes of a field of this process's Linux status."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) * 1024


def reset_peak() -> None:
    """Forget the peak so far: building a module may have needed more than it keeps."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main(*sys.argv[1:])))
