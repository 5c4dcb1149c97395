"""Slurm's jobs as values (pure): options and script for ``sbatch``, and output of ``squeue``."""

import math
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdukit.box.image import BoxEnd
from rdukit_platform.backends.contract import BoxOwner, BoxSpec, OwnedBox
from rdukit_platform.backends.slurm_place import SlurmPlace

#: First word of the comment of our jobs; then owner, epoch and box.
MARK: Final = "rdukit"
#: States in which a job has, or may still get, an allocation.
WAITING: Final = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
HELD: Final = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
#: Ends that Slurm or its users cause, not the box.
TAKEN: Final[Mapping[str, BoxEnd]] = {
    "CANCELLED": BoxEnd.WITHDRAWN,
    "PREEMPTED": BoxEnd.PREEMPTED,
    "TIMEOUT": BoxEnd.TIMED_OUT,
    "DEADLINE": BoxEnd.TIMED_OUT,
    "NODE_FAIL": BoxEnd.KILLED,
    "BOOT_FAIL": BoxEnd.KILLED,
    "REVOKED": BoxEnd.KILLED,
}
OUT_OF_MEMORY: Final = "OUT_OF_MEMORY"
#: Fields of ``squeue --Format``; the comment is last, because it may have any character.
FIELDS: Final = ("jobid", "state", "exit_code", "reason", "comment")
#: Seconds in addition to a job's run limit, for start and end.
MARGIN_S: Final = 60.0
#: Seconds after its allocation from which on a job's script counts as late.
SLOW_BEGIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class SlurmLook:
    """A job as ``squeue`` shows it."""

    id: str
    state: str
    #: Exit status, negative: the signal that ended it.
    status: int
    #: Wait reason.
    reason: str
    owned: OwnedBox | None

    @property
    def is_waiting(self) -> bool:
        """Return whether the job waits for its allocation."""
        return self.state in WAITING

    @property
    def has_ended(self) -> bool:
        """Return whether the job's allocation is over."""
        return self.state not in WAITING and self.state not in HELD


def submit_options(spec: BoxSpec, place: SlurmPlace) -> list[str]:
    """Return the options of ``sbatch`` for a box."""
    owner = spec.owner or BoxOwner("box", 0)
    options = [
        "--parsable", "--no-requeue", f"--job-name={MARK}-{owner.id}", f"--comment={comment_of(spec)}",
        f"--nodelist={place.node}", "--nodes=1", "--ntasks=1", "--chdir=/", "--output=/dev/null", "--export=ALL",
    ]  # fmt: skip
    if place.partition:
        options.append(f"--partition={place.partition}")
    if place.gres and spec.tiles:
        options.append(f"--gres={place.gres}:{spec.tiles}")
    if spec.run_limit_s is not None:
        options.append(f"--time={math.ceil((spec.run_limit_s + MARGIN_S) / 60)}")
    if spec.limits.memory_bytes is not None:
        options.append(f"--mem={math.ceil(spec.limits.memory_bytes / (1 << 20))}M")
    return [*options, *place.options]


def comment_of(spec: BoxSpec) -> str:
    """Return the comment that identifies a box."""
    owner = spec.owner or BoxOwner("", 0)
    box = Path(spec.box).parent.name if "/" in spec.box else spec.box
    return f"{MARK} {owner.id or '-'} {owner.epoch} {box}"


def read_comment(job_id: str, comment: str) -> OwnedBox | None:
    """Parse a job's comment; ``None``: the job is not rdukit's, or has no owner."""
    words = comment.split(" ")
    if len(words) != 4 or words[0] != MARK or words[1] == "-" or not words[2].isdecimal():
        return None
    return OwnedBox(job_id, words[3], BoxOwner(words[1], int(words[2])))


def look_format() -> str:
    """Return the ``--Format`` whose lines ``read_looks`` reads."""
    return ",".join(f"{name}:|" for name in FIELDS)


def read_looks(text: str) -> list[SlurmLook]:
    """Parse the output of ``squeue``; other lines are ignored."""
    looks = []
    for line in text.splitlines():
        words = line.split("|", len(FIELDS) - 1)
        if len(words) == len(FIELDS) and words[0].isdecimal():
            job_id, state, status, reason, comment = words
            owned = read_comment(job_id, comment.removesuffix("|"))
            looks.append(SlurmLook(job_id, state, read_status(status), reason, owned))
    return looks


def read_status(text: str) -> int:
    """Convert a status of ``wait`` to an exit status; signals are negative, even those that a shell reports."""
    try:
        status = os.waitstatus_to_exitcode(int(text))
    except ValueError:
        return 0
    number = status - 128
    return -number if number in set(signal.Signals) else status


def end_of(look: SlurmLook) -> BoxEnd | None:
    """Return the end of a box whose allocation was taken; ``None``: the box ended itself."""
    return TAKEN.get(look.state)


def describe_end(look: SlurmLook) -> str:
    """Describe the end of a job's allocation, and the next step if a user caused it."""
    name = f"Slurm job {look.id}"
    more = {
        "CANCELLED": f"{name} was cancelled outside the platform; to also end the platform's job: rdukit job cancel "
        "JOB",
        "PREEMPTED": f"{name} was preempted for another Slurm job",
        "TIMEOUT": f"{name} reached its time limit, which without a run limit is the partition's",
        "NODE_FAIL": f"{name} lost its node (NODE_FAIL)",
        OUT_OF_MEMORY: f"{name} exceeded its memory limit (OUT_OF_MEMORY)",
    }
    return more.get(look.state, f"{name} ended: {look.state}")


def describe_wait(look: SlurmLook, node: str, waited_s: float) -> tuple[str, str]:
    """Return why a job's script has not begun, with Slurm's code; empty: it is about to begin.

    Args:
        waited_s: seconds since its submission, or since its allocation.
    """
    if look.is_waiting:
        return f"Slurm job {look.id} waits for node {node}: {look.reason}", look.reason
    if waited_s < SLOW_BEGIN_S:
        return "", ""
    return (
        f"Slurm job {look.id} is {look.state} on node {node}, where its script has not begun; see there whether slurmd "
        "runs",
        "ReqNodeNotAvail",
    )


def make_script(command: Sequence[str], files: "JobFiles", spec_file: Path | None) -> str:
    """Return the script of a job: one program, which gets the job's signals and whose status is the job's.

    The script writes the program's process id, and waits for it even after SIGTERM, which all processes of a job get. A
    box that the platform ended gracefully counts as successful.
    """
    quoted = shlex.join(command)
    given = f" 3<{shlex.quote(str(spec_file))}" if spec_file is not None else ""
    pid = shlex.quote(str(files.pid))
    return f"""#!/bin/sh
trap : TERM
{quoted}{given} </dev/null >>{shlex.quote(str(files.log))} 2>&1 &
echo $! >{pid}.part && mv {pid}.part {pid}
while wait $!; status=$?; [ $status -gt 128 ] && kill -0 $! 2>/dev/null; do :; done
[ -e {shlex.quote(str(files.done))} ] && exit 0
exit $status
"""


@dataclass(frozen=True, slots=True)
class JobFiles:
    """Files of a job outside of its box's own folder, where no box writes."""

    state: Path

    @property
    def log(self) -> Path:
        return self.state / "box.log"

    @property
    def pid(self) -> Path:
        """File with the process id of the job's program, on this machine."""
        return self.state / "slurm.pid"

    @property
    def spec(self) -> Path:
        """File with the program's specification; it has the lease, so Slurm and other users cannot read it."""
        return self.state / "slurm-spec.json"

    @property
    def done(self) -> Path:
        """File that exists when the platform has ended the box gracefully."""
        return self.state / "slurm-done"
