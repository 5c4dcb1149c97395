"""Program in a fork of a server: in its fence if it has one, with its own environment. See ``system.forks``."""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rdukit.fence import launcher
from rdukit.system.forks import ForkRequest, run_to_end


def run_forked(request: ForkRequest, program: Callable[[Sequence[str]], int]) -> int:
    """Run ``program`` with the request's ``arguments`` and ``environment``, in its ``fence`` if it has one.

    A fence is what ``launcher_json`` wrote; its environment is the program's. Nothing of the server's environment and
    none of its descriptors reach the program, and none of those that the fence holds.
    """
    fence = request.body.get("fence")
    if fence is None:
        return _run(request, program, request.body["environment"], request.descriptors)
    # The launcher is a child of the server, which ends with whoever it serves.
    watched = {**fence, "parent": None if fence["parent"] is None else request.server}

    def become(spec: Mapping[str, Any]) -> None:
        run_to_end(partial(_run, request, program, spec["environment"], ()))

    return launcher.launch(watched, become)


def _run(
    request: ForkRequest, program: Callable[[Sequence[str]], int], environment: Mapping[str, str], kept: Sequence[int]
) -> int:
    request.close_others(kept)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return program(request.body["arguments"])
