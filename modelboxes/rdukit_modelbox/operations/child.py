"""The process that does a box's work: ``python -m rdukit_modelbox.operations.child --events-fd N --parent PID``.

Reads its request as one JSON line from stdin, and writes JSON lines to the descriptor: ``started``, ``progress``,
``log``, then ``result`` or ``error``. A crash or a kill of the child process ends one operation and not the box.
"""

import json
import logging
import os
import signal
import sys
import time
import traceback
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from rdukit.system.process import die_with_parent

if TYPE_CHECKING:
    from rdukit.errors import RdukitError
    from rdukit_modelbox.contract.box import Box, Verb
    from rdukit_modelbox.verbs.context import Progress, VerbFunction, VerbResult

#: Shortest time in seconds between progress messages of a stage; the first and the last are always sent.
PROGRESS_INTERVAL_S: Final = 0.1


def main(arguments: list[str]) -> int:
    """Run one child; its exit status is 0 when the work succeeded."""
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    die_with_parent(int(options["--parent"]))
    # Imports come after the watch on the parent: they may take long, and the parent may die meanwhile.
    from rdukit.errors import RdukitError, find_system_error
    from rdukit.settings import resolve
    from rdukit.system.process import configure_logging, lower_priority
    from rdukit.telemetry.spans import BOX, close_telemetry, configure_telemetry, find_traceparent, span
    from rdukit_modelbox.settings import VERB_NICE

    configure_logging()
    configure_telemetry(BOX)
    with os.fdopen(int(options["--events-fd"]), "w") as events:
        try:
            request: dict[str, Any] = json.loads(sys.stdin.readline())
            if not request.get("is_follower"):  # a follower inherits the niceness of the process that started it
                lower_priority(resolve(VERB_NICE))
            _send(events, kind="started")
            attributes = {"rdukit.box": Path(request["box_file"]).parent.name, "rdukit.verb": request["verb"]}
            try:
                with span(f"box {request['verb']}", attributes, parent=find_traceparent(request.get("traceparent"))):
                    _run_verb(request, events)
            finally:
                close_telemetry()
        except RdukitError as error:
            _send(events, kind="error", **error.body())
            return error.exit_status
        except Exception as error:  # noqa: BLE001 the process's boundary
            traceback.print_exc()
            known = find_system_error(error)
            if known is not None:
                _send(events, kind="error", **known.body())
                return known.exit_status
            _send(events, kind="error", error={"code": "internal", "message": f"{type(error).__name__}: {error}"})
            return 1
    return 0


class ChildContext:
    """``VerbContext`` that writes to the parent."""

    def __init__(self, box: "Box", events: IO[str]) -> None:
        self._box = box
        self._events = events
        self._cancelled = False
        self._sent_at: dict[str, float] = {}
        signal.signal(signal.SIGTERM, self._on_terminate)

    @property
    def box(self) -> "Box":
        """Return the box whose verb runs."""
        return self._box

    def progress(self, progress: "Progress") -> None:
        """Send the progress, unless one of the same stage was sent just before."""
        now = time.monotonic()
        is_edge = progress.step in {0, 1, progress.total}
        if not is_edge and now - self._sent_at.get(progress.stage, 0.0) < PROGRESS_INTERVAL_S:
            return
        self._sent_at[progress.stage] = now
        _send(self._events, kind="progress", progress=progress.to_json())

    def log(self, text: str) -> None:
        """Send the line."""
        _send(self._events, kind="log", log=text)

    def check_cancelled(self) -> None:
        """Raise ``Cancelled`` once SIGTERM has come."""
        if self._cancelled:
            from rdukit.errors import Cancelled

            raise Cancelled("the operation was cancelled")

    def _on_terminate(self, number: int, frame: object) -> None:
        self._cancelled = True


class FollowerContext(ChildContext):
    """Context of a follower: only the first member reports progress and logs."""

    def progress(self, progress: "Progress") -> None:
        """Discard the progress."""

    def log(self, text: str) -> None:
        """Discard the line."""


def _run_verb(request: dict[str, Any], events: IO[str]) -> None:
    from rdukit_modelbox.artifacts.exchange import bring_inputs, send_outputs
    from rdukit_modelbox.artifacts.mounts import Exchange
    from rdukit_modelbox.contract.box import Verb, load_box
    from rdukit_modelbox.contract.metrics import find_undeclared, words_for_undeclared
    from rdukit_modelbox.operations.members import find_part, other_members
    from rdukit_modelbox.operations.profiling import recording

    box, verb = load_box(Path(request["box_file"])), Verb(request["verb"])
    run, parameters, output = _load_program(box, verb), request["parameters"], Path(request["output"])
    inputs = {name: Path(path) for name, path in request["inputs"].items()}
    if request.get("is_follower"):  # the box's first member has fetched them
        with recording(request):
            run(FollowerContext(box, events), parameters, inputs, output)
        return
    part = find_part() if verb is Verb.TRAIN else None
    context = ChildContext(box, events) if part is None or part.part == 0 else FollowerContext(box, events)
    exchange = Exchange(**request["exchange"])
    inputs = bring_inputs(context, inputs, exchange)
    brought = {**request, "inputs": {name: str(path) for name, path in inputs.items()}}
    with recording(request) as recorded:
        with other_members(main, brought, lambda error: _end(events, error)) if verb is Verb.TRAIN else nullcontext():
            done = run(context, parameters, inputs, output)
        if recorded is not None:
            done = _with_profile(context, verb, done, recorded, output)
    if undeclared := find_undeclared(box, verb, done.figures):
        context.log(words_for_undeclared(box, verb, undeclared))
    outputs = {name: str(path) for name, path in done.outputs.items()}
    if exchange.upload:
        outputs = send_outputs(context, done.outputs, exchange.upload)
    _send(events, kind="result", result=dict(done.figures), outputs=outputs)


def _load_program(box: "Box", verb: "Verb") -> "VerbFunction":
    """Return the function of a box's verb. A fine-tuning calls the verbs of the model's own box."""
    if box.is_for_folders:
        from rdukit_modelbox.finetune.job import run_finetune

        return run_finetune
    from rdukit_modelbox.verbs import load_verb

    return load_verb(verb)


def _with_profile(
    context: ChildContext, verb: "Verb", done: "VerbResult", recorded: Path, output: Path
) -> "VerbResult":  # fmt: skip
    """Return the verb's result with its profile as a further output. Without one the log has the reason."""
    from rdukit_modelbox.operations.profiling import PROFILE, explain_failure, write_profile

    name = context.box.name
    try:
        made = write_profile(recorded, f"{name} {verb}", f"rdukit job submit {name} {verb} --profile", output)
    except Exception as error:  # noqa: BLE001 its work is done and must not be lost
        traceback.print_exc()
        context.log(explain_failure(error))
        return done
    if made is None:
        context.log(f"there is no profile: {verb} ran no session")
        return done
    return replace(done, outputs={**done.outputs, PROFILE: made})


def _end(events: IO[str], error: "RdukitError") -> None:
    """End this process at once, because another member failed."""
    _send(events, kind="error", **error.body())
    os._exit(error.exit_status)


def _send(events: IO[str], **message: object) -> None:
    events.write(json.dumps(message) + "\n")
    events.flush()


if __name__ == "__main__":
    exit_status = main(sys.argv[1:])
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is written and released; unloading torch would only take a second.
    os._exit(exit_status)
