"""Trials of advice: the commands that apply a change, and the verdict on their measurements. Pure.

A trial measures what the advice predicts: the time of a sample in the program's calmer runs.

Source: ours.
"""

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit.pef.model import CONSTANTS, NO_EVALUATION, UNSAVED_STATE
from rdukit.settings import KERNELS
from rdukit_runtime.profile.comparison import CONFIDENCE, make_ratio
from rdukit_runtime.profile.recording import ProcessRecording
from rdukit_runtime.profile.step import BreakdownRow
from rdukit_runtime.report.calm import GROUP, LEAST_GROUPS, run_groups
from rdukit_runtime.tune.space import Point, option_words

#: Commands of a SambaFlow program that take a PEF.
_RUN: Final = frozenset({"run", "test", "measure-performance"})
#: Gains below are not worth a change.
LEAST_GAIN: Final = 1.02
#: Runs of a program that has a time of a sample.
LEAST_RUNS: Final = 3
#: Entries of a PEF's metadata that are not options of a compile, or that the trial sets itself.
_NOT_OPTIONS: Final = frozenset(
    {
        "command", "pef", "pef_name", "output_folder", "yaml_config", "local_rank", "log_level", CONSTANTS,
        NO_EVALUATION, UNSAVED_STATE,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProgramChange:
    """A change that a trial can apply: options of the compile, which the run takes as well, and variables of both."""

    options: Point = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


class TrialState(StrEnum):
    """Outcomes of a trial."""

    CONFIRMED = "confirmed"
    WITHDRAWN = "withdrawn"
    #: Faster in most rounds, but not with certainty.
    UNDECIDED = "undecided"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class AdviceTrial:
    """The outcome of a trial. ``gain`` is a measured factor of speed with its interval; 0 if nothing was measured."""

    state: TrialState
    words: str
    gain: float = 0.0
    low: float = 0.0
    high: float = 0.0
    rounds: int = 0


def not_tried(reason: str) -> AdviceTrial:
    """Return the outcome of advice that was not measured."""
    return AdviceTrial(TrialState.NOT_TRIED, reason)


def judge_trial(before_s: Sequence[float], after_s: Sequence[float]) -> AdviceTrial:
    """Return the verdict on paired seconds of a sample.

    Confirmed: the complete interval is above 1. Withdrawn: the median gain is below ``LEAST_GAIN``.
    """
    ratio = make_ratio(before_s, after_s, CONFIDENCE)
    low, high = 1 / ratio.high, 1 / ratio.low if ratio.low else math.inf
    gain = 1 / ratio.value
    state = TrialState.CONFIRMED if low > 1.0 else TrialState.UNDECIDED
    words = f"{gain:.2f} times as fast ({low:.2f} to {high:.2f}), measured in {len(before_s)} rounds in turns"
    if gain < LEAST_GAIN:
        state = TrialState.WITHDRAWN
    elif state is TrialState.UNDECIDED:
        words += "; more --rounds would decide"
    return AdviceTrial(state, words, gain, low, high, len(before_s))


def trial_to_dict(trial: AdviceTrial) -> dict[str, Any]:
    """Return plain values, for JSON."""
    return {
        "state": trial.state.value,
        "words": trial.words,
        "gain": trial.gain or None,
        "low": trial.low or None,
        "high": trial.high if trial.high and math.isfinite(trial.high) else None,
        "rounds": trial.rounds,
    }


def run_ns(recording: ProcessRecording) -> float:
    """Return ns of a run, including the host's work up to the next one: the lower quartile of groups of ten runs.

    The first run is left out. With fewer than four groups, return the mean from the second run to the last call's end.

    Raises:
        InvalidArgument: fewer than ``LEAST_RUNS`` runs were kept.
    """
    begins = [call.begin_ns for call in recording.calls if call.row is BreakdownRow.SAMBA]
    if len(begins) < LEAST_RUNS:
        raise InvalidArgument(f"the program made {len(begins)} runs; expected {LEAST_RUNS} or more: let it run longer")
    groups = sorted(end - begin for begin, end in run_groups(recording))
    if len(groups) >= LEAST_GROUPS:
        return groups[len(groups) // 4] / GROUP
    return (max(call.end_ns for call in recording.calls) - begins[1]) / (len(begins) - 1)


def signature(recording: ProcessRecording) -> list[object]:
    """Return modes and kernels of the PEFs that ran; if they are equal, a change had no effect on the compile."""
    return [
        [pef["mode"], [(section["kernel"], section["form"]) for section in pef["sections"]]] for pef in recording.pefs
    ]


def changed_command(words: Sequence[str], change: ProgramChange, pef: str = "") -> list[str]:
    """Return a command with a change's options at its end, where they override earlier ones.

    Args:
        pef: the PEF to run; empty: the program compiles.
    """
    return [*words, *option_words(change.options), *(["--pef", pef] if pef else [])]


def compile_command(
    words: Sequence[str], change: ProgramChange, options_file: str, folder: str, name: str
) -> list[str]:
    """Return the compile for a command that runs a PEF: ``python app.py run …`` becomes ``python app.py compile …``.

    Args:
        options_file: YAML file of all options, by ``compile_options``.
    Raises:
        InvalidArgument: the command is not of that form.
    """
    for number, word in enumerate(words):
        if number == 0 or word not in _RUN:
            continue
        first = number - 2 if words[number - 2] == "-m" and number > 1 else number - 1
        if first == number - 1 and not words[first].endswith(".py"):
            continue
        starts = [n for n in range(first) if PurePath(words[n]).name.startswith("python")]
        head = list(words[starts[-1] : number]) if starts else [sys.executable, *words[first:number]]
        own = ["--yaml-config", options_file, "--output-folder", folder, "--pef-name", name]
        return [*head, "compile", *option_words(change.options), *own]
    raise InvalidArgument(
        f"{shlex.join(words)} is neither a compile nor of the form 'python app.py run --pef=FILE.pef'; give the "
        "changed command with --try-with"
    )


def compile_options(metadata: Mapping[str, Any], change: ProgramChange) -> dict[str, Any]:
    """Return the options of a compile that differs from a PEF's only by ``change``.

    Args:
        metadata: the PEF's, which records its compile options.
    """
    dropped = _NOT_OPTIONS | ({KERNELS.name} if KERNELS.variable in change.variables else frozenset())
    kept = {key: value for key, value in metadata.items() if key.isidentifier() and key not in dropped}
    return kept | {name.replace("-", "_"): value for name, value in change.options.items()}
