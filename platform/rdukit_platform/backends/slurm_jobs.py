"""Slurm's jobs as values: what is asked of ``sbatch``, the script that it runs, what ``squeue`` says. Pure."""

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
#: Ends that are none of the box's own doing.
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
#: Fields of ``squeue --Format``, each with the mark behind it; a comment may have any sign, so it is the last.
FIELDS: Final = ("jobid", "state", "exit_code", "reason", "comment")
#: Seconds that a job may take before and after what its run limit counts.
MARGIN_S: Final = 60.0
#: Seconds from its allocation after which a job's script is late.
SLOW_BEGIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class SlurmLook:
    """A job as ``squeue`` shows it."""

    id: str
    state: str
    #: Exit status, negative: the signal that ended it.
    status: int
    #: Of a job that waits: why.
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
    """Return the comment by which a box is found again."""
    owner = spec.owner or BoxOwner("", 0)
    box = Path(spec.box).parent.name if "/" in spec.box else spec.box
    return f"{MARK} {owner.id or '-'} {owner.epoch} {box}"


def read_comment(job_id: str, comment: str) -> OwnedBox | None:
    """Return whose box a job is; ``None``: it is none of ours, or has no owner."""
    words = comment.split(" ")
    if len(words) != 4 or words[0] != MARK or words[1] == "-" or not words[2].isdecimal():
        return None
    return OwnedBox(job_id, words[3], BoxOwner(words[1], int(words[2])))


def look_format() -> str:
    """Return the ``--Format`` whose lines ``read_looks`` reads."""
    return ",".join(f"{name}:|" for name in FIELDS)


def read_looks(text: str) -> list[SlurmLook]:
    """Read what ``squeue`` prints; lines that are none of it are left out."""
    looks = []
    for line in text.splitlines():
        words = line.split("|", len(FIELDS) - 1)
        if len(words) == len(FIELDS) and words[0].isdecimal():
            job_id, state, status, reason, comment = words
            owned = read_comment(job_id, comment.removesuffix("|"))
            looks.append(SlurmLook(job_id, state, read_status(status), reason, owned))
    return looks


def read_status(text: str) -> int:
    """Return an exit status from the number that ``wait`` gave; of a shell, too, a signal is negative."""
    try:
        status = os.waitstatus_to_exitcode(int(text))
    except ValueError:
        return 0
    number = status - 128
    return -number if number in set(signal.Signals) else status


def end_of(look: SlurmLook) -> BoxEnd | None:
    """Return the end of a box whose allocation Slurm, or somebody by it, took; ``None``: it ended by itself."""
    return TAKEN.get(look.state)


def describe_end(look: SlurmLook) -> str:
    """Describe what became of a job's allocation, and what to do where that is somebody's choice."""
    name = f"Slurm job {look.id}"
    more = {
        "CANCELLED": f"{name} was cancelled from outside; to end the platform's job too: rdukit job cancel JOB",
        "PREEMPTED": f"{name} was preempted for another job of Slurm's",
        "TIMEOUT": f"{name} was ended at its time limit; without a run limit that is the partition's",
        "NODE_FAIL": f"{name} lost its node (NODE_FAIL)",
        OUT_OF_MEMORY: f"{name} was ended: it used more memory than it may (OUT_OF_MEMORY)",
    }
    return more.get(look.state, f"{name} ended: {look.state}")


def describe_wait(look: SlurmLook, node: str, waited_s: float) -> tuple[str, str]:
    """Return why the script of a job has not begun, and a code as Slurm has it; empty: it is about to begin.

    Args:
        waited_s: how long it has waited since it was submitted, or since it got its allocation.
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
    """Return the script of a job: one program, which gets what it is sent and whose status is the job's.

    It waits for the program, also when it is sent SIGTERM, which all processes of a job are, and says where it is.
    A box that the platform ended in order has not failed.
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
    """Files of a job beside its box's own folder, where no box writes."""

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
        """File with what the program is to do: it has the lease, so neither Slurm nor others see it."""
        return self.state / "slurm-spec.json"

    @property
    def done(self) -> Path:
        """File that is there when the platform has ended the box in order."""
        return self.state / "slurm-done"
