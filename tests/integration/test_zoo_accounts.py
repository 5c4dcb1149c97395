"""``rdukit profile`` accounts for the time of every model of the zoo: host and sections are the wall time."""

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from rdukit_runtime.profile.program import profile_program
from rdukit_runtime.profile.recording import summary_to_dict
from support import shows
from support.zoo_parity import SMALL_SIZES

pytestmark = shows("profile", "zoo")

#: Trains a model, or runs it if it has no loss; writes its runs and the time of its loop by its own clock.
PROGRAM: Final = """
import json, sys, time
import torch
from rdukit_zoo.registry import get_model
from sambaflow import samba
from sambaflow.samba import utils

name, sizes, folder = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
torch.manual_seed(0)
entry = get_model(name)
known = entry.check_sizes(sizes)
model = entry.build(**known)
samba.from_torch_model_(model)
inputs = entry.make_inputs(4, **known)
optim = samba.optim.SGD(model.parameters(), lr=1e-4) if entry.task != "embedding" else None
config = {"output_folder": folder, "log_level": "error"}
pef = samba.session.compile(model, inputs, optim, name=name, inference=optim is None, config_dict=config)
traced = utils.trace_graph(model, inputs, optim, inference=optim is None, pef=pef)
runs, began = 0, time.perf_counter_ns()
while runs < 12 or time.perf_counter_ns() - began < 300_000_000:
    samba.to_torch(samba.session.run(inputs, traced)[0])
    runs += 1
with open(folder + "/loop.json", "w") as stream:
    json.dump({"runs": runs, "ns": time.perf_counter_ns() - began}, stream)
"""
#: Rows of the account before the first run and after the last.
_AROUND: Final = {"compile", "trace graph", "load PEF", "before the first run: the rest", "after the last run"}
#: Models that also have native kernels here; all have portable ones, which compile quickly.
_NATIVE: Final = ("mlp", "gpt2")
_CASES: Final = [
    *(pytest.param(name, "portable", marks=[] if name == "logreg" else pytest.mark.long) for name in SMALL_SIZES),
    *(pytest.param(name, "native", marks=pytest.mark.long) for name in _NATIVE),
]


#: Programs that are run until their clock and the account agree: another program may take the processor in between.
_ATTEMPTS: Final = 3


def account_of(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Profile the program; return the summary, and what the program says of its loop."""
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    words = [sys.executable, str(folder / "program.py"), name, json.dumps(SMALL_SIZES[name][0]), str(folder)]
    found = profile_program(words, 100_000, os.environ)
    assert found.status == 0
    summary = summary_to_dict(found.command, found.status, found.wall_ns, found.recordings, found.spans)
    return summary, json.loads((folder / "loop.json").read_text())


def loop_ns(summary: dict[str, Any]) -> int:
    """Return the account's time from the first run to the last."""
    (process,) = summary["processes"]
    return sum(row["ns"] for row in process["account"] if row["name"] not in _AROUND or row["part"] == "section")


@pytest.mark.parametrize(("name", "kernels"), _CASES)
def test_host_and_sections_are_the_wall_time(
    name: str, kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", kernels)
    for attempt in range(_ATTEMPTS):
        summary, loop = account_of(name, tmp_path / str(attempt))
        (process,) = summary["processes"]
        assert sum(row["ns"] for row in process["account"]) == pytest.approx(summary["wall_ns"], rel=0.01)
        assert [row for row in process["account"] if row["ns"] < 0] == []
        assert process["runs"] == loop["runs"]
        assert {section["runs"] for section in process["sections"]} == {loop["runs"]}
        assert {section["form"] for section in process["sections"]} >= {kernels}
        if loop_ns(summary) == pytest.approx(loop["ns"], rel=0.01):
            break
    else:
        pytest.fail(f"the account has {loop_ns(summary)} ns, the program's own clock {loop['ns']}")
