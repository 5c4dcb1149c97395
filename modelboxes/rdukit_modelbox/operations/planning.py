"""Plans for children: every part of a request for a verb, checked."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, RdukitError
from rdukit.telemetry.spans import current_context, format_traceparent
from rdukit_modelbox.artifacts.mounts import Mounts, plan_exchange, resolve_inputs
from rdukit_modelbox.artifacts.reference import parse_output
from rdukit_modelbox.contract.box import Box, Verb
from rdukit_modelbox.contract.check_parameters import check_parameters
from rdukit_modelbox.operations.profiling import PROFILE
from rdukit_modelbox.operations.runner import VerbWork
from rdukit_modelbox.operations.values import VerbCall
from rdukit_modelbox.server.state_folder import StateFolder
from rdukit_modelbox.training.options import options_from

#: Longest timeout of an operation: a year.
MAX_TIMEOUT_S: Final = 366 * 86400.0
#: Verbs that run sessions, whose time a profile shows.
PROFILED: Final = frozenset({Verb.TRAIN, Verb.EVALUATE, Verb.INFER})


def check_call(call: VerbCall) -> None:
    """Check the parts of a call that do not depend on verb and box.

    Raises:
        InvalidArgument: the time is not valid; the detail has ``field``.
    """
    if not (math.isfinite(call.timeout_s) and 0 <= call.timeout_s <= MAX_TIMEOUT_S):
        message = f"timeout_s: {call.timeout_s} is not valid; expected 0 (no limit) <= x <= {MAX_TIMEOUT_S:.0f}"
        raise InvalidArgument(message, field="timeout_s")


class WorkPlanner:
    """Plans the work of one box."""

    def __init__(self, box: Box, box_file: Path, mounts: Mounts, state: StateFolder) -> None:
        """``box_file``: file from which children read ``box``."""
        self._box = box
        self._box_file = box_file
        self._mounts = mounts
        self._state = state

    def plan(self, verb: Verb, call: VerbCall, operation_id: str) -> VerbWork:
        """Return the work of ``call``, and create its output folder.

        Raises:
            UnknownParameter, IllegalValue, InvalidArgument, NotFound: the request is wrong; the detail has ``field``.
        """
        box, mounts = self._box, self._mounts
        if call.profile and verb not in PROFILED:
            legal = ", ".join(sorted(PROFILED))
            raise InvalidArgument(f"profile: {verb} runs no session; expected one of {legal}", field=PROFILE)
        with _fields("parameters", "parameter"):
            parameters = check_parameters(box, verb, call.parameters)
            if verb is Verb.TRAIN:
                options_from(parameters)  # contradictions are reported at once
        with _fields("inputs", "input"):
            inputs = resolve_inputs(mounts, box, verb, call.inputs)
        with _fields("output"):
            upload = parse_output(call.output).uri if call.output.startswith("s3://") else ""
            exchange = plan_exchange(mounts, box, verb, call.inputs, upload)
            output = self._state.make_output(mounts, "" if upload else call.output, operation_id)
        current = current_context()
        request = {
            "kind": "verb", "verb": str(verb), "box_file": str(self._box_file), "parameters": parameters,
            "inputs": {name: str(path) for name, path in inputs.items()}, "output": str(output),
            "exchange": asdict(exchange), "traceparent": format_traceparent(current) if current else "",
            PROFILE: call.profile,
        }  # fmt: skip
        return VerbWork(verb, request, inputs, call.timeout_s)


@contextmanager
def _fields(place: str, detail: str = "") -> Iterator[None]:
    """Add the wrong field of the request to errors inside the block."""
    try:
        yield
    except RdukitError as error:
        name = error.detail.get(detail) if detail else None
        error.detail.setdefault("field", f"{place}.{name}" if isinstance(name, str) else place)
        raise
