"""Trials of advice: the commands that apply a change, and verdicts that withdraw advice which does not help."""

import sys
from dataclasses import replace
from typing import Any

import pytest

from rdukit.errors import InvalidArgument
from rdukit_runtime.profile.recording import ProcessRecording, TimedCall
from rdukit_runtime.profile.step import ROWS, Breakdown, BreakdownRow
from rdukit_runtime.report.advice import Advice, advice_to_dict
from rdukit_runtime.report.calm import calm_part
from rdukit_runtime.report.drawings import draw_run
from rdukit_runtime.report.trials import (
    AdviceTrial,
    ProgramChange,
    TrialState,
    changed_command,
    compile_command,
    compile_options,
    judge_trial,
    run_ns,
    signature,
)
from rdukit_runtime.report.try_advice import INTERRUPTED, try_in_order
from support import shows

pytestmark = shows("profile")

BATCH = ProgramChange({"batch-size": 8})
RUN = ["mpirun", "-np", "2", "/usr/bin/python3.11", "app.py", "run", "-b", "2", "--pef=a.pef", "-n", "20"]


def recording(*calls: TimedCall, kernel: str = "k") -> ProcessRecording:
    pef = {"mode": "o3", "path": "gone.pef", "sections": [{"kernel": kernel, "form": "native"}]}
    breakdown = Breakdown(dict.fromkeys(ROWS, 0), len(calls), 1)
    return ProcessRecording(1, 0, 0, 100, calls, (pef,), (), 0, {}, breakdown)


def run_at(begin: int, end: int, row: BreakdownRow = BreakdownRow.SAMBA) -> TimedCall:
    return TimedCall(row, "run", begin, end, None, 0, ())


def test_a_run_becomes_a_compile_of_the_same_program_without_its_launcher() -> None:
    made = compile_command(RUN, BATCH, "o.yaml", "folder", "tried")
    own = ["--yaml-config", "o.yaml", "--output-folder", "folder", "--pef-name", "tried"]
    assert made == ["/usr/bin/python3.11", "app.py", "compile", "--batch-size", "8", *own]
    module = compile_command(
        ["python", "-m", "apps.net", "run", "-p", "a.pef"], ProgramChange(), "o.yaml", "folder", "tried"
    )
    assert module == ["python", "-m", "apps.net", "compile", *own]
    assert compile_command(["./app.py", "test"], ProgramChange(), "o.yaml", "folder", "tried")[:3] == [
        sys.executable, "./app.py", "compile",
    ]  # fmt: skip
    assert changed_command(RUN, BATCH, "new.pef")[-4:] == ["--batch-size", "8", "--pef", "new.pef"]
    with pytest.raises(InvalidArgument, match="--try-with"):
        compile_command(["python", "train.py", "--epochs", "2"], BATCH, "o.yaml", "folder", "tried")


def test_a_compile_has_the_options_of_the_pef_but_for_the_change() -> None:
    recorded = {
        "batch_size": 2, "optim_level": "o0", "kernels": "portable", "command": "compile", "pef_name": "a",
        "constants": "…", "no-option": 1,
    }  # fmt: skip
    assert compile_options(recorded, BATCH) == {"batch_size": 8, "optim_level": "o0", "kernels": "portable"}
    native = compile_options(recorded, ProgramChange(variables={"RDUKIT_KERNELS": "native"}))
    assert native == {"batch_size": 2, "optim_level": "o0"}


def test_a_run_is_timed_from_the_second_with_the_work_around_it() -> None:
    around = run_at(55, 70, BreakdownRow.XFER)
    found = recording(run_at(0, 30), run_at(40, 45), run_at(50, 55), around)
    assert run_ns(found) == (70 - 40) / 2
    with pytest.raises(InvalidArgument, match="made 2 runs; expected 3 or more"):
        run_ns(recording(run_at(0, 30), run_at(40, 45)))


def test_advice_is_confirmed_if_every_round_says_so_and_withdrawn_if_the_median_gains_nothing() -> None:
    slow, fast = [2.0, 2.1, 1.9, 2.0, 2.2, 2.0, 1.8], [1.0] * 7
    helped = judge_trial(slow, fast)
    assert helped.state is TrialState.CONFIRMED
    assert (helped.gain, helped.low, helped.high) == pytest.approx((2.0, 1.8, 2.2))
    assert judge_trial(slow, [*fast[:6], 1.81]).state is TrialState.UNDECIDED
    assert judge_trial(slow[:6], fast[:6]).state is TrialState.UNDECIDED, "six rounds decide nothing"
    assert judge_trial(fast, fast).state is TrialState.WITHDRAWN
    assert judge_trial(fast, slow).state is TrialState.WITHDRAWN


def advice(option: str, **changed: Any) -> Advice:
    return replace(Advice("Slow.", f"--{option}", 2.0, "all is well", apply=ProgramChange({option: 1})), **changed)


def test_the_next_best_advice_is_tried_after_one_that_does_not_help_and_that_one_comes_last() -> None:
    no, yes = (
        AdviceTrial(TrialState.WITHDRAWN, "0.9", 0.9, 0.8, 1.1, 7),
        AdviceTrial(TrialState.CONFIRMED, "2", 2.0, 1.8, 2.2, 7),
    )
    given = [advice("a"), advice("by-hand", apply=None), advice("b"), advice("c")]
    found = try_in_order(given, lambda change: {"a": no, "b": yes}[next(iter(change.options))])
    states = [(each.change, each.trial and each.trial.state) for each in found]
    assert states == [
        ("--by-hand", TrialState.NOT_TRIED), ("--b", TrialState.CONFIRMED), ("--c", TrialState.NOT_TRIED),
        ("--a", TrialState.WITHDRAWN),
    ]  # fmt: skip
    shown = advice_to_dict(found[1])
    assert shown["gain"] == 2.0
    assert shown["trial"] == {
        "state": "confirmed", "words": "2", "gain": 2.0, "low": 1.8, "high": 2.2, "rounds": 7,
    }  # fmt: skip


def test_advice_that_was_measured_by_a_command_keeps_its_outcome() -> None:
    yes = AdviceTrial(TrialState.CONFIRMED, "2", 2.0, 1.8, 2.2, 7)
    found = try_in_order([advice("by-hand", apply=None, trial=yes), advice("a")], lambda change: yes)
    assert [each.trial for each in found] == [yes, yes]
    stopped = try_in_order([advice("by-hand", apply=None, trial=INTERRUPTED), advice("a")], lambda change: yes)
    assert [each.trial for each in stopped] == [INTERRUPTED, INTERRUPTED]


def test_after_an_interrupt_no_further_advice_is_tried() -> None:
    tried = []

    def interrupted(change: ProgramChange) -> AdviceTrial:
        tried.append(change)
        raise KeyboardInterrupt

    found = try_in_order([advice("a"), advice("b")], interrupted)
    assert len(tried) == 1
    assert [each.trial for each in found] == [INTERRUPTED, INTERRUPTED]


def test_equal_kernels_show_that_a_program_ignores_a_change() -> None:
    assert signature(recording()) == signature(recording(run_at(0, 1)))
    assert signature(recording()) != signature(recording(kernel="other"))


def disturbed(every_ns: int = 10, groups: int = 6) -> ProcessRecording:
    """Runs of 6 ns, each 10 ns after the one before, with a read of 1 ns after each tenth; every other ten are slow."""
    calls, at = [], 0
    for number in range(10 * groups + 2):
        calls += [run_at(at, at + 6), TimedCall(BreakdownRow.RUN_HW, "run", at + 1, at + 5, None, 0, ((0, 3),))]
        if number % 10 == 0:
            calls.append(run_at(at + 7, at + 8, BreakdownRow.XFER))
        at += every_ns + (1000 if number % 20 == 5 else 0)
    pef = {"sections": [{"kernel": "k", "form": "native"}]}
    return replace(recording(*calls), pefs=(pef,))


def test_the_calmer_half_of_the_runs_has_their_own_account() -> None:
    calm = calm_part(disturbed())
    spent = calm.breakdown.nanoseconds
    assert calm.breakdown.runs == 30
    assert spent[BreakdownRow.TOTAL] == 300, "three groups of ten runs that nothing disturbed"
    assert (spent[BreakdownRow.RUN_HW], spent[BreakdownRow.XFER]) == (30 * 4, 3)
    assert spent[BreakdownRow.SAMBA] == 300 - 30 * 4 - 3
    assert calm.section_times() == {(0, 0): (30, 90)}
    assert run_ns(disturbed()) == 10
    few = disturbed(groups=3)
    assert calm_part(few) is few


def test_a_run_of_many_narrow_sections_is_a_small_picture_and_wide_ones_have_their_names() -> None:
    sections = [{"name": "gemm", "type": "fwd"}, *({"name": f"s{n}", "type": "bckwd"} for n in range(5000))]
    run = TimedCall(BreakdownRow.RUN_HW, "run", 0, 10_000, None, 0, ((0, 5000), *((n, 1) for n in range(1, 5001))))
    drawn = draw_run(replace(recording(run), pefs=({"sections": sections},)), run)
    assert ">gemm<" in drawn
    assert drawn.count('class="bar bckwd"') == 1, "narrow sections that touch are one bar"
    assert drawn.count('class="bar fwd"') == 1
