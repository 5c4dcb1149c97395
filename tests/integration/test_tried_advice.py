"""``rdukit profile --try`` on real programs: a change is compiled and measured, and one without effect is found."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rdukit.telemetry.model import Span, SpanContext
from rdukit_runtime.profile.program_run import ProgramProfile, profile_program
from rdukit_runtime.profile.recording import ProcessRecording
from rdukit_runtime.profile.step import ROWS, Breakdown
from rdukit_runtime.report.advice import Advice
from rdukit_runtime.report.trials import ProgramChange, TrialState
from rdukit_runtime.report.try_advice import INTERRUPTED, Trials
from support import shows

pytestmark = shows("profile")

#: A layer that is small, so that a run of one sample is mostly the host's work.
PROGRAM = """
import sys
from torch import nn
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.utils.argparser import parse_app_args

args = parse_app_args(argv=sys.argv[1:])
utils.set_seed(0)
model = nn.Linear(8, 8)
samba.from_torch_model_(model)
inputs = (samba.randn(args.batch_size, 8, name="x", batch_dim=0),)
if args.command == "compile":
    samba.session.compile(model, inputs, None, name="small", inference=True, config_dict=vars(args))
else:
    traced = utils.trace_graph(model, inputs, None, inference=True, pef=args.pef)
    for _ in range(args.num_iterations):
        samba.session.run(inputs, traced)
"""

#: Compiles in each run, into a folder of its own choice, and notes the mode of the PEF there.
OWN_FOLDER = (
    "from pathlib import Path\nfrom rdukit.pef import read_pef\n"
    + PROGRAM.partition("if args.command")[0]
    + """
own = {"pef_name": "own", "optim_level": args.optim_level, "log_level": "error"}
pef = samba.session.compile(model, inputs, None, inference=True, config_dict=own)
with open("seen.txt", "a") as file:
    file.write(read_pef(Path("out/own/own.pef")).pef.mode + " ")
traced = utils.trace_graph(model, inputs, None, inference=True, pef=pef)
for _ in range(args.num_iterations):
    samba.session.run(inputs, traced)
"""
)


def test_a_run_that_fails_is_reported_with_its_last_line_and_nothing_is_judged() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such option: --workers')"]
    recording = ProcessRecording(1, 0, 0, 100, (), (), (), 0, {}, Breakdown(dict.fromkeys(ROWS, 0), 1, 1))
    tried = Trials(command, ProgramProfile("app.py", 0, 0, 100, (recording,), ()), 7, {}, lambda line: None)
    (only,) = tried.try_command([Advice("Slow.", "num_workers=2", 2.0, "a core is free")], command)
    assert only.trial is not None
    assert only.trial.state is TrialState.NOT_TRIED
    assert "ended with status 1: no such option: --workers" in only.trial.words


def test_a_run_that_a_signal_ended_stops_the_trials() -> None:
    command = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"]
    recording = ProcessRecording(1, 0, 0, 100, (), (), (), 0, {}, Breakdown(dict.fromkeys(ROWS, 0), 1, 1))
    compiled = Span("compile", SpanContext("1" * 32, "1" * 16))
    found = ProgramProfile("app.py", 0, 0, 100, (recording,), (compiled,))
    change = Advice("Slow.", "--batch-size 4", 2.0, "all is well", apply=ProgramChange(variables={"A": "1"}))
    first, second = Trials(command, found, 7, {}, lambda line: None).try_all([change, change])
    assert first.trial == second.trial == INTERRUPTED


@pytest.mark.long  # four processes
def test_a_trial_never_writes_to_the_folder_of_a_program_that_ignores_output_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN_FOLDER)
    command = [sys.executable, "own.py", "run", "--optim-level", "o0", "-n", "20", "--pef", "none"]
    found = profile_program(command, 10_000, os.environ, 2)
    assert found.status == 0
    other = Advice("Slow.", "-o1", 2.0, "all is well", apply=ProgramChange({"optim-level": "o1"}))
    (only,) = Trials(command, found, 1, os.environ, lambda line: None).try_all([other])
    assert only.trial is not None
    assert only.trial.rounds == 1, only.trial.words
    assert Path("seen.txt").read_text().split() == ["o0"] * 3, "the changed compile went elsewhere"


@pytest.mark.long  # five processes
def test_a_change_is_compiled_with_the_other_options_and_measured_by_the_samples_of_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.py").write_text(PROGRAM)
    compiled = [sys.executable, "small.py", "compile", "-b", "1", "--pef-name", "small", "--log-level", "error"]
    subprocess.run(compiled, check=True, stdout=subprocess.DEVNULL)
    command = [sys.executable, "small.py", "run", "-b", "1", "--pef", "out/small/small.pef", "-n", "200"]
    found = profile_program(command, 10_000, os.environ, 2)
    assert found.status == 0
    assert found.recordings
    said: list[str] = []
    trials = Trials(command, found, 1, os.environ, said.append)
    larger = Advice("Slow.", "--batch-size 4", 2.0, "all is well", apply=ProgramChange({"batch-size": 4}))
    (only,) = trials.try_all([larger])
    assert only.trial is not None, said
    assert only.trial.rounds == 1, only.trial.words
    assert only.trial.gain > 0
    assert said[0] == "trying: --batch-size 4"
    same = replace(larger, change="--batch-size 1", apply=ProgramChange({"batch-size": 1}))
    (only,) = trials.try_all([same])
    assert only.trial is not None
    assert "compiles the same with --batch-size" in only.trial.words
