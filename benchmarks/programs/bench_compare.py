"""Is the verdict of ``rdukit pef compare`` right? Comparisons of equal PEFs, and of PEFs with one slower section. ::

    python benchmarks/programs/bench_compare.py [--comparisons 40] [--slower 5] [--kernels portable] [--json FILE]

A model in mode o0 has one section for each operator. In the second PEF the section of ``sin`` has a vector that is
longer by ``--slower`` percent, and takes longer by as much; all other sections are equal. Each comparison loads both
PEFs anew, as the command does. False are verdicts on the step or on any section of equal PEFs. A slower section is
found if its own verdict is *slower*. Verdicts on sections that are equal count as false there, too.
"""

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rdukit_bench.comparisons.machine import write_json
from torch import nn

from rdukit.cli.tables import print_table
from rdukit_runtime.profile.compare_command import compare_files
from rdukit_runtime.profile.comparison import PefComparison, SpeedVerdict
from sambaflow import samba

BATCH, WIDTH, LENGTH = 64, 384, 120_000


class Waves(nn.Module):
    """Two layers, and the sine of a vector: x [B, F] → ([B, F], [N])."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.angles = nn.Parameter(torch.ones(length))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.nn.functional.gelu(self.first(x))
        return torch.softmax(self.second(hidden), dim=-1), torch.sin(self.angles)


def compile_waves(length: int, kernels: str, folder: Path) -> Path:
    """Return the PEF of a model whose vector has ``length`` elements."""
    samba.session.reset()
    torch.manual_seed(0)
    samba.from_torch_model_(model := Waves(length))
    x = samba.randn(BATCH, WIDTH, name="x", batch_dim=0)
    config = {"output_folder": str(folder), "optim_level": "o0", "precision": "f32", "kernels": kernels}
    config |= {"log_level": "error"}
    return Path(samba.session.compile(model, (x,), None, name=f"waves_{length}", inference=True, config_dict=config))


def false_verdicts(found: PefComparison, slower: str) -> list[str]:
    """Return what was judged to differ and is equal: the step, where no section is slower, and sections."""
    judged = [(each.name, each.ratio.verdict) for each in found.sections if each.name != slower]
    judged += [] if slower else [("step", found.step.verdict)]
    return [f"{name} {verdict.value}" for name, verdict in judged if verdict is not SpeedVerdict.UNDECIDED]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=40)
    parser.add_argument("--slower", type=float, default=5.0, help="percent")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--kernels", choices=["portable", "native"], default="portable")
    parser.add_argument("--json")
    args = parser.parse_args()
    records = []
    with tempfile.TemporaryDirectory() as folder:
        lengths = (LENGTH, round(LENGTH * (1 + args.slower / 100)))
        before, after = (compile_waves(length, args.kernels, Path(folder)) for length in lengths)
        for number in range(args.comparisons):
            for kind, other in (("A/A", before), ("A/B", after)):
                found = compare_files(before, other, args.rounds, args.runs)
                named = [s.name for s in found.sections if s.ratio.verdict is SpeedVerdict.SLOWER and "sin" in s.name]
                slower = next(s.name for s in found.sections if "sin" in s.name) if kind == "A/B" else ""
                wrong = false_verdicts(found, slower)
                records.append(
                    {
                        "kind": kind, "false": wrong, "found": bool(named and slower), "step": found.step.value,
                        "step_low": found.step.low, "step_high": found.step.high, "load": os.getloadavg()[0],
                    }
                )  # fmt: skip
                print(f"{number + 1} {kind}: step {found.step.value:.3f}, found {named}, false {wrong}", flush=True)
    rows = []
    for kind in ("A/A", "A/B"):
        own = [record for record in records if record["kind"] == kind]
        wrong_count = sum(bool(record["false"]) for record in own)
        found_count = str(sum(bool(record["found"]) for record in own)) if kind == "A/B" else ""
        loads = sorted(float(str(record["load"])) for record in own)
        rows.append((kind, str(len(own)), str(wrong_count), found_count, f"{loads[0]:.1f} to {loads[-1]:.1f}"))
    print_table(("kind", "comparisons", "with a false verdict", "slower section found", "load"), rows)
    if args.json:
        write_json(args.json, {"records": records, "arguments": vars(args)})


if __name__ == "__main__":
    main()
