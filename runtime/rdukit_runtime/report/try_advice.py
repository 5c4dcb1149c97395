"""``rdukit profile --try``: apply the change that advice names, and run the program before and after it in turns.

Source: ours.
"""

import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from rdukit.errors import InvalidArgument, RdukitError, RuntimeFault
from rdukit.files.owned import scratch_folder
from rdukit.pef.file import read_pef
from rdukit_runtime.profile.program_run import ProgramProfile, profile_program
from rdukit_runtime.report.trials import (
    AdviceTrial,
    ProgramChange,
    TrialState,
    changed_command,
    compile_command,
    compile_options,
    judge_trial,
    not_tried,
    run_ns,
    signature,
)
from rdukit_runtime.settings import PROFILE_OUTPUT_FOLDER
from rdukit_runtime.tune.space import option_words

if TYPE_CHECKING:
    from rdukit_runtime.profile.recording import ProcessRecording
    from rdukit_runtime.report.advice import Advice

#: Calls and sections that each process of a trial keeps.
_EVENTS: Final = 60_000
#: Pieces of advice that are tried until one is confirmed.
_MOST_TRIES: Final = 3
#: Statuses of a program that Ctrl-C or SIGTERM ended.
_INTERRUPTS: Final = frozenset({128 + signal.SIGINT, 128 + signal.SIGTERM})
#: Outcome of advice whose trial the user stopped.
INTERRUPTED: Final = not_tried("interrupted")
_NAME: Final = "tried"
_MOST_WORDS: Final = 300
_BY_HAND: Final = "it changes the program's text; give the changed command with --try-with"


@dataclass(frozen=True, slots=True)
class Trials:
    """Trials of one program.

    Args:
        command: as profiled; ``found``: its profile. rounds: pairs of runs. echo: prints a line for the user.
    """

    command: Sequence[str]
    found: ProgramProfile
    rounds: int
    environment: Mapping[str, str]
    echo: Callable[[str], None]

    def try_all(self, advice: Sequence["Advice"]) -> list["Advice"]:
        """Try the best applicable advice, then the next ones until one helps; return all advice with outcomes."""
        return try_in_order(advice, self._try_change)

    def try_command(self, advice: Sequence["Advice"], command: Sequence[str]) -> list["Advice"]:
        """Try a command in which the user has applied the best advice about the program's text."""
        chosen = next((n for n, each in enumerate(advice) if each.apply is None and each.scope == "runs"), None)
        if chosen is None:
            self.echo("no advice changes the program's text, so --try-with was not measured")
            return list(advice)
        self.echo(f"trying: {shlex.join(command)}")
        try:
            trial = self._measure(list(command), {}, None)
        except KeyboardInterrupt:
            trial = INTERRUPTED
        except RdukitError as error:
            trial = not_tried(error.message)
        return _withdrawn_last([replace(each, trial=trial) if n == chosen else each for n, each in enumerate(advice)])

    def _try_change(self, change: ProgramChange) -> AdviceTrial:
        self.echo(f"trying: {shlex.join([*option_words(change.options), *change.variables])}")
        with scratch_folder("rdukit-try") as scratch:
            # the user's PEF stays as it is
            variables = {**change.variables, PROFILE_OUTPUT_FOLDER.variable: str(scratch)}
            try:
                if any(span.name == "compile" for span in self.found.spans):
                    command = changed_command(self.command, change)
                else:
                    pef = self._compile(change, variables, scratch)
                    command = changed_command(self.command, change, str(pef))
                return self._measure(command, variables, change)
            except RdukitError as error:
                return not_tried(error.message)

    def _compile(self, change: ProgramChange, variables: Mapping[str, str], folder: Path) -> Path:
        """Recompile the program's PEF with a change and ``variables`` into ``folder``; returns its path.

        Raises:
            InvalidArgument: the command cannot be made a compile. RuntimeFault: the compile failed. PefError: the
            program's PEF cannot be read.
        """
        pefs = self.found.recordings[0].pefs
        if len(pefs) != 1:
            raise InvalidArgument(f"the program runs {len(pefs)} PEFs; expected one to change")
        options = folder / "options.yaml"
        metadata = read_pef(Path(pefs[0]["path"])).pef.metadata
        options.write_text(yaml.safe_dump(_plain(compile_options(metadata, change))))
        command = compile_command(self.command, change, str(options), str(folder), _NAME)
        environment = {**self.environment, **variables}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        path = folder / _NAME / f"{_NAME}.pef"
        if done.returncode or not path.is_file():
            raise RuntimeFault(f"{shlex.join(command[:3])} … failed: {_last_line(done.stderr or done.stdout)}")
        return path

    def _measure(
        self, command: Sequence[str], variables: Mapping[str, str], change: ProgramChange | None
    ) -> AdviceTrial:
        """Run the unchanged program and ``command`` in turns.

        Raises:
            RuntimeFault: a run failed. InvalidArgument: a program made too few runs, or the change had no effect.
            KeyboardInterrupt: a signal ended a run.
        """
        changed = {**self.environment, **variables}
        seconds: tuple[list[float], list[float]] = ([], [])
        for number in range(self.rounds):
            for side in (0, 1) if (self.rounds - number) % 2 == 0 else (1, 0):  # ends with the unchanged program
                recording = self._run(*((self.command, self.environment), (command, changed))[side])
                seconds[side].append(run_ns(recording) / 1e9 / _batch_of(recording))
                if number == 0 and side and change is not None:
                    self._check_effect(recording, change)
            self.echo(f"round {number + 1} of {self.rounds}: {seconds[0][-1] / seconds[1][-1]:.2f} times as fast")
        return judge_trial(*seconds)

    def _run(self, command: Sequence[str], environment: Mapping[str, str]) -> "ProcessRecording":
        with tempfile.TemporaryFile() as printed:
            found = profile_program(command, _EVENTS, environment, printed.fileno())
            printed.seek(0)
            words = _last_line(printed.read().decode(errors="replace"))
        if found.status in _INTERRUPTS:  # the program got the signal, and this process goes on
            raise KeyboardInterrupt
        if found.status or not found.recordings:
            raise RuntimeFault(f"{shlex.join(command)} ended with status {found.status}: {words}")
        return found.recordings[0]

    def _check_effect(self, recording: "ProcessRecording", change: ProgramChange) -> None:
        if signature(recording) == signature(self.found.recordings[0]):
            named = ", ".join([*(f"--{name}" for name in change.options), *change.variables])
            raise InvalidArgument(f"the program compiles the same with {named}; expected config_dict=vars(args)")


def try_in_order(advice: Sequence["Advice"], try_change: Callable[[ProgramChange], AdviceTrial]) -> list["Advice"]:
    """Try changes until one helps or the user interrupts; returns all advice with outcomes, withdrawn advice last.

    Advice with an outcome, as from ``--try-with``, keeps it.
    """
    tried, helps, found = 0, False, []
    is_stopped = any(each.trial == INTERRUPTED for each in advice)
    for each in advice:
        if each.trial is not None:
            trial = each.trial
        elif each.apply is None:
            trial = not_tried(_BY_HAND if each.scope == "runs" else "its gain does not concern runs")
        elif is_stopped:
            trial = INTERRUPTED
        elif helps or tried == _MOST_TRIES:
            trial = not_tried("better advice was confirmed" if helps else f"only {_MOST_TRIES} are tried")
        else:
            try:
                trial = try_change(each.apply)
            except KeyboardInterrupt:
                trial, is_stopped = INTERRUPTED, True
            tried += trial.rounds > 0
            helps = trial.state is TrialState.CONFIRMED
        found.append(replace(each, trial=trial))
    return _withdrawn_last(found)


def _withdrawn_last(advice: Sequence["Advice"]) -> list["Advice"]:
    """Return advice that may help, then withdrawn advice."""
    return sorted(advice, key=lambda each: each.trial is not None and each.trial.state is TrialState.WITHDRAWN)


def _batch_of(recording: "ProcessRecording") -> int:
    """Return samples of a run; 1 if the PEF does not record them."""
    value = read_pef(Path(recording.pefs[0]["path"])).pef.metadata.get("batch_size") if recording.pefs else None
    return value if isinstance(value, int) and value > 0 else 1


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that YAML can hold."""
    return {key: value for key, value in values.items() if isinstance(value, str | int | float | list | dict | None)}


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:_MOST_WORDS] if lines else "it printed nothing"
