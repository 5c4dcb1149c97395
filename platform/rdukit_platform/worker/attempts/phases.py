"""Phases of an attempt in order: in a box of its own, or in one of the pool.

A box of its own: two boxes of one job never use the job's folder at once. A box process inherits the folder's lock, and
every backend finds and ends boxes of earlier attempts.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from math import inf
from typing import Final

from rdukit.box.client import BoxClient
from rdukit.errors import Cancelled, LeaseLost, Unavailable
from rdukit.files.atomic import remove_tree
from rdukit.files.home import make_folder
from rdukit.telemetry.spans import format_traceparent, span
from rdukit_platform.backends.job_boxes import WITHOUT_GRPC, BoxPlace, spec_of
from rdukit_platform.jobs import execution
from rdukit_platform.jobs.states import MAX_RUN_LIMIT_S
from rdukit_platform.settings import PROCESSES
from rdukit_platform.worker import box_ends
from rdukit_platform.worker.attempts.answers import ask, judge_silence
from rdukit_platform.worker.attempts.carried import bring_work
from rdukit_platform.worker.attempts.inputs import (
    add_outputs,
    bring_box,
    bring_inputs,
    check_fenced,
    check_tiles,
    named_outputs,
)
from rdukit_platform.worker.attempts.state import STOP_S, AttemptState
from rdukit_platform.worker.orphans import end_earlier, lock_folder
from rdukit_platform.worker.parts import hold_on, linked
from rdukit_platform.worker.patience import check_free, patiently
from rdukit_platform.worker.pool import ANSWER_S, MAX_ANSWER_BYTES, BoxPool
from rdukit_platform.worker.tiles import TileRequest, environment_of, lease_members
from rdukit_platform.worker.verdicts import WITH_BOX, AttemptFailure, AttemptPhase, find_meaning

logger = logging.getLogger(__name__)

Phases = Sequence[tuple[AttemptPhase, Callable[[AttemptState], None]]]


def run_phases(attempt: AttemptState) -> None:
    """Run the attempt's phases in order; then the job has succeeded, or continues elsewhere.

    Raises:
        AttemptFailure: the attempt has failed. LeaseLost: the attempt no longer belongs to this worker.
        Exception: the worker's own fault.
    """
    pool = attempt.context.pool
    phases = POOLED if pool is not None and pool.takes(attempt.job) else OWN_BOX
    with attempt.held:
        for phase, do in phases:
            try:
                do(attempt)
            except LeaseLost:
                raise
            except Exception as error:
                # Judged while the box is still there: its end and its log say why.
                failure = _judge(attempt, phase, error)
                if failure is None or failure is error:
                    raise
                raise failure from error


def _judge(attempt: AttemptState, phase: AttemptPhase, error: Exception) -> AttemptFailure | None:
    if (known := find_meaning(phase, error)) is not None:
        return known
    if phase in WITH_BOX and isinstance(error, Cancelled | Unavailable):
        return judge_silence(attempt, error)
    return None


def _check_worker(attempt: AttemptState) -> None:
    check_fenced(attempt.context)
    attempt.patiently(lambda: check_free(attempt.context.home.folder))


# -- a box of its own --------------------------------------------------------------------------------------------------


def _bring(attempt: AttemptState) -> None:
    context, job, folder = attempt.context, attempt.job, attempt.folder
    make_folder(folder)
    # A box of an earlier attempt may hold the lock, and a former holder of the lock may have left a box.
    end_earlier(context.backend, attempt.owner)
    attempt.lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    attempt.held.callback(os.close, attempt.lock)
    lock_folder(attempt.lock, job.id, attempt.stop)
    end_earlier(context.backend, attempt.owner)
    with span("bring inputs", {"rdukit.inputs": len(job.inputs)}):
        if attempt.part.is_first:
            attempt.patiently(lambda: bring_work(context, job, attempt.output))
        else:
            remove_tree(attempt.output)
        attempt.inputs = attempt.patiently(lambda: bring_inputs(context, job, folder / "in"))
        check_tiles(job, attempt.inputs)
        attempt.own = attempt.patiently(lambda: bring_box(context, job, folder / "box"))


def _lease(attempt: AttemptState) -> None:
    job, members = attempt.job, attempt.part.members
    if not job.tiles:
        return
    limit_s = MAX_RUN_LIMIT_S if job.run_limit_s is None else job.run_limit_s
    asked = TileRequest(f"{job.box}-{job.verb}", job.tiles, job.tenant_id, job.id, run_limit_s=limit_s)
    with span("lease tiles", {"rdukit.tiles": job.tiles, "rdukit.members": members}):
        attempt.tiles = lease_members(attempt.held, attempt.context.home.snd_socket, asked, members, attempt.leases)
        tiles = [tile for lease in attempt.leases for tile in lease["tiles"]]
        attempt.note(lambda session: execution.hold_tiles(session, attempt.fencing, tiles))


def _link(attempt: AttemptState) -> None:
    attempt.link = attempt.held.enter_context(
        linked(attempt.context, attempt.fencing, attempt.job, attempt.part, attempt.folder, attempt.stop)
    )


def _start(attempt: AttemptState) -> None:
    context, job, link, folder = attempt.context, attempt.job, attempt.link, attempt.folder
    attempt.held.push(partial(_stop_box, attempt))
    attempt.output.mkdir(exist_ok=True)
    fence = context.fences.of(job.tenant_id)
    work = attempt.begin_work()
    wires = WITHOUT_GRPC if context.backend.name in PROCESSES else {}
    spec = spec_of(
        context.rules, job.box, attempt.owner, folder / f"attempt-{job.attempt}", folder / "in", attempt.output,
        {**wires, **environment_of(attempt.tiles, link), **attempt.trace.environment(work.context)},
        [*(each.socket for each in attempt.tiles), *([] if link is None else [link.socket])], [attempt.lock],
        attempt.own, fence, BoxPlace(job.tiles * len(attempt.tiles), job.run_limit_s, attempt.say_wait),
        None if link is None else link.part,
    )  # fmt: skip
    with span("start box", {"rdukit.backend": context.backend.name}):
        attempt.box = context.backend.start(spec, context.box_start_s, attempt.stop)
    work.start_ns = time.time_ns()


def _call(attempt: AttemptState) -> None:
    assert attempt.box is not None
    with BoxClient(attempt.box.rest_url, ANSWER_S, max_bytes=MAX_ANSWER_BYTES) as client:
        attempt.operation = ask(attempt, client, attempt.box)
    attempt.end_work()


def _stop_box(attempt: AttemptState, _: object, error: BaseException | None, __: object) -> None:
    box = attempt.box
    if box is None:
        return
    if attempt.stop.is_set() or isinstance(error, LeaseLost):
        box_ends.terminate(box)  # still alive; it may have been asked to end just now
    try:
        box.stop(STOP_S)
    except Unavailable as error:
        # The attempt ends now. Its box then counts as orphaned, and the reaper ends it.
        logger.warning("box not stopped job=%s id=%s error=%s", attempt.job.id, box.id, error)


# -- a box of the pool -------------------------------------------------------------------------------------------------


def _borrow(attempt: AttemptState) -> None:
    context, job, pool = attempt.context, attempt.job, attempt.context.pool
    assert pool is not None
    attempt.held.push(partial(_return_box, attempt, pool))
    fence = context.fences.of(job.tenant_id)
    attempt.begin_work()
    with span("take box", {"rdukit.backend": context.backend.name}):
        lent = pool.lend(job.tenant_id, job.box, fence, context.box_start_s, attempt.stop)
    attempt.pooled, attempt.box, attempt.scope, attempt.trace.file = lent, lent.box, lent.folder, lent.spans


def _show(attempt: AttemptState) -> None:
    lent = attempt.pooled
    assert lent is not None
    incoming, attempt.output = lent.make_room(attempt.name)
    if attempt.job.inputs:
        attempt.inputs = attempt.patiently(lambda: bring_inputs(attempt.context, attempt.job, incoming))
        lent.show(incoming)


def _call_pooled(attempt: AttemptState) -> None:
    lent, work = attempt.pooled, attempt.work_span
    assert lent is not None and work is not None
    work.start_ns = time.time_ns()
    attempt.operation = ask(attempt, lent.client, lent.box, format_traceparent(work.context))
    attempt.end_work()


def _return_box(attempt: AttemptState, pool: BoxPool, _: object, error: BaseException | None, __: object) -> None:
    lent = attempt.pooled
    if lent is None:
        return
    if error is None and not attempt.stop.is_set():
        lent.clear(attempt.name)
        pool.give_back(lent)
        return
    attempt.trace.read_box_spans()
    pool.end(lent, STOP_S)


# -- outputs -----------------------------------------------------------------------------------------------------------


def _keep(attempt: AttemptState) -> None:
    context, box = attempt.context, attempt.box
    assert box is not None
    if not attempt.part.is_first:
        hold_on(box, attempt.stop)
    if attempt.pooled is None:
        # The box has delivered everything, so it needs no time to shut down.
        box.stop(0.0)
    with ExitStack() as hold:
        add = partial(add_outputs, context, hold, attempt.output, named_outputs(attempt.operation))
        outputs, now = patiently(add, attempt.stop, inf), context.clock.now()
        result, spans = attempt.operation.get("result"), attempt.trace.end()
        logger.info("attempt done job=%s outputs=%s", attempt.job.id, ",".join(output.slot for output in outputs))
        succeed = partial(execution.succeed, outputs=outputs, result=result, now=now, spans=spans)
        attempt.write(partial(succeed, fencing=attempt.fencing), on_commit=attempt.is_done.set)


OWN_BOX: Final[Phases] = (
    (AttemptPhase.INPUTS, _check_worker),
    (AttemptPhase.INPUTS, _bring),
    (AttemptPhase.TILES, _lease),
    (AttemptPhase.LINK, _link),
    (AttemptPhase.ISOLATION, _start),
    (AttemptPhase.VERB, _call),
    (AttemptPhase.OUTPUTS, _keep),
)
POOLED: Final[Phases] = (
    (AttemptPhase.INPUTS, _check_worker),
    (AttemptPhase.ISOLATION, _borrow),
    (AttemptPhase.INPUTS, _show),
    (AttemptPhase.VERB, _call_pooled),
    (AttemptPhase.OUTPUTS, _keep),
)
