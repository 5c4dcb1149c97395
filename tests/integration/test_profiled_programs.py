"""``rdukit profile`` on real programs: from the line of Python to the kernel, and where the time went."""

import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rdukit_runtime.profile.program import profile
from rdukit_runtime.profile.program_run import profile_program
from rdukit_runtime.report.advice import BoundBy
from support import shows
from support.forked import run_python

pytestmark = shows("profile")

#: Compiles, trains three steps and reads the loss; a second PEF's runs follow.
PROGRAM = """
import sys
import torch
from torch import nn
from sambaflow import samba

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x, label):
        return self.criterion(self.linear(x), label)

def train(model, pef, inputs, optim):
    outputs = samba.utils.trace_graph(model, inputs, optim, pef=pef)
    for _ in range(3):
        loss, = samba.session.run(inputs, outputs)
        print(float(samba.to_torch(loss)))

torch.manual_seed(0)
model = Small()
samba.from_torch_model_(model)
inputs = samba.randn(4, 8, name="x", batch_dim=0), samba.randint(4, (4,), name="label", batch_dim=0)
optim = samba.optim.SGD(model.parameters(), lr=0.1)
pef = samba.session.compile(model, inputs, optim, name="small", config_dict={"output_folder": sys.argv[1]})
train(model, pef, inputs, optim)
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(profile, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profiled")
    (folder / "small.py").write_text(PROGRAM)
    shown = run("-o", folder / "profile", "--", sys.executable, folder / "small.py", folder / "out")
    assert shown.exit_code == 0
    assert "engine, around sections" in shown.stdout
    return folder / "profile"


def load(profiled: Path, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((profiled / name).read_text())
    return value


def test_host_and_sections_add_up_to_the_wall(profiled: Path) -> None:
    summary = load(profiled, "summary.json")
    (process,) = summary["processes"]
    assert sum(row["ns"] for row in process["account"]) == pytest.approx(summary["wall_ns"], rel=0.01)
    assert all(row["ns"] >= 0 for row in process["account"])
    assert {"compile", "trace graph", "load PEF"} <= {row["name"] for row in process["account"]}
    assert process["runs"] == 3
    assert {section["type"] for section in process["sections"]} >= {"fwd", "bckwd", "opt"}
    assert all(section["runs"] == 3 and section["host_ns"] > 0 for section in process["sections"])


def test_the_trace_goes_from_the_line_of_python_to_the_section(profiled: Path) -> None:
    events = load(profiled, "trace.json")["traceEvents"]
    run_line = next(n for n, line in enumerate(PROGRAM.splitlines(), 1) if "session.run" in line)
    line = next(e for e in events if e["name"] == f"small.py:{run_line} train")
    inside = [
        e["name"]
        for e in events
        if e["ph"] == "X" and e["tid"] == line["tid"] and line["ts"] <= e["ts"] < line["ts"] + line["dur"]
    ]
    wanted = [f"small.py:{run_line} train", "session.run", "runtime.run", "graph small"]
    assert [name for name in inside if name in wanted] == wanted
    sections = [e for e in events if e["ph"] == "X" and e["cat"] == "fwd"]
    assert len(sections) == 6  # three on each clock
    assert {e["name"] for e in events if e["ph"] == "C"} == {"resident memory", "device memory (planned)"}


def test_no_loss_is_in_the_files(profiled: Path) -> None:
    names = {path.name for path in profiled.iterdir()}
    assert names == {"report.html", "trace.json", "speedscope.json", "summary.json"}
    frames = load(profiled, "speedscope.json")["shared"]["frames"]
    assert any(frame["name"].startswith("small.py:") for frame in frames)
    assert any("kernel" in frame["name"] for frame in frames)


def test_the_page_has_verdict_advice_roofline_and_source_lines_and_names_no_other_address(profiled: Path) -> None:
    page = (profiled / "report.html").read_text()
    (verdict,) = re.findall(r'class="verdict">([^<]+)<', page)
    assert verdict in {BoundBy.HOST, BoundBy.SECTION, BoundBy.MEMORY, BoundBy.COMPUTE, BoundBy.CALLS}
    for part in (">Roofline<", ">Timeline<", ">Memory<", "loss, = samba.session.run(inputs, outputs)"):
        assert part in page
    assert "times as fast" in page
    assert "Not on this page" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "rdukit profile -- " in page


def test_the_exit_status_is_the_programs_and_3_without_a_session(tmp_path: Path) -> None:
    assert run("-o", tmp_path, "--", "sh", "-c", "exit 5").exit_code == 5
    assert run("-o", tmp_path, "--", "true").exit_code == 3
    assert json.loads((tmp_path / "summary.json").read_text())["processes"] == []


def test_what_a_killed_profile_left_is_removed_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # fmt: skip
    kills = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"
    program = (
        f"import os, tempfile\ntempfile.tempdir = {str(tmp_path)!r}\n"
        "from rdukit_runtime.profile.program_run import profile_program\n"
        f"profile_program([{sys.executable!r}, '-c', {kills!r}], 10, os.environ)"
    )
    killed = run_python(["-c", program])
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith("rdukit-profile-")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert profile_program(["true"], 10, os.environ).status == 0
    assert not any(tmp_path.iterdir())
