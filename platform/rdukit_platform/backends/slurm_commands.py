"""Slurm's own commands, each as one call: ``sbatch``, ``squeue``, ``scancel`` and ``scontrol``."""

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from rdukit.errors import BackendUnavailable, NoResources, Unavailable
from rdukit.settings import resolve
from rdukit_platform.backends.slurm_jobs import SlurmLook, look_format, read_looks
from rdukit_platform.backends.slurm_place import (
    SLURM_GRES,
    SLURM_NODE,
    SLURM_OPTIONS,
    SLURM_PARTITION,
    SlurmNode,
    SlurmPlace,
    check_node,
    find_node,
    read_nodes,
    read_options,
)

COMMANDS: Final = ("sbatch", "squeue", "scancel", "scontrol")
#: Variables that Slurm's commands, and jobs through them, inherit; others could change the commands' output.
KEPT: Final = ("PATH", "SLURM_CONF", "SLURM_JWT", "LD_LIBRARY_PATH")
ANSWER_S: Final = 20.0
#: Parts of messages that mean an unreachable controller.
AWAY: Final = ("Unable to contact", "Connection refused", "Socket timed out", "Zero Bytes were transmitted",
               "configuration source", "Communication connection failure", "munge")  # fmt: skip
NO_SUCH_JOB: Final = "Invalid job id"


class SlurmCommands:
    """Calls of Slurm's commands by the user of this process."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environment = {name: environ[name] for name in KEPT if name in environ} | {"LANG": "C.UTF-8"}

    def submit(self, options: Sequence[str], script: str) -> str:
        """Submit a script. Returns the job's id.

        Raises:
            NoResources: Slurm refuses it; the message is Slurm's.
            BackendUnavailable: Slurm does not answer.
        """
        done = self._run("sbatch", *options, stdin=script)
        if done.returncode != 0:
            raise NoResources(f"Slurm rejected the job: {_words_of(done)}")
        return done.stdout.strip().partition(";")[0]

    def look(self, job_id: str) -> SlurmLook | None:
        """Return a job's present state; ``None``: Slurm does not know it, or no longer.

        Raises:
            BackendUnavailable: Slurm does not answer.
        """
        looks = self._looks(f"--jobs={job_id}", "--states=all")
        return next((look for look in looks if look.id == job_id), None)

    def looks(self) -> list[SlurmLook]:
        """Return this user's jobs that have not ended.

        Raises:
            BackendUnavailable: Slurm does not answer.
        """
        return self._looks("--me")

    def cancel(self, job_id: str) -> None:
        """End a job; nothing happens if it has ended.

        Raises:
            BackendUnavailable: Slurm does not answer, or refuses.
        """
        done = self._run("scancel", job_id)
        if done.returncode != 0 and NO_SUCH_JOB not in done.stderr:
            raise BackendUnavailable(f"scancel {job_id} was refused: {_words_of(done)}")

    def nodes(self) -> list[SlurmNode]:
        """Return the nodes of the cluster.

        Raises:
            BackendUnavailable: Slurm does not answer.
        """
        return read_nodes(self._output("scontrol", "--oneliner", "show", "node"))

    def partitions(self) -> list[str]:
        """Return the names of the cluster's partitions.

        Raises:
            BackendUnavailable: Slurm does not answer.
        """
        lines = self._output("scontrol", "--oneliner", "show", "partition").splitlines()
        return [line.partition(" ")[0].removeprefix("PartitionName=") for line in lines if line]

    def _looks(self, *options: str) -> list[SlurmLook]:
        done = self._run("squeue", "--noheader", f"--Format={look_format()}", *options)
        if done.returncode != 0:
            if NO_SUCH_JOB in done.stderr:
                return []
            raise BackendUnavailable(f"squeue was refused: {_words_of(done)}")
        return read_looks(done.stdout)

    def _output(self, *words: str) -> str:
        done = self._run(*words)
        if done.returncode != 0:
            raise BackendUnavailable(f"{words[0]} was refused: {_words_of(done)}")
        return done.stdout

    def _run(self, *words: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        try:
            done = subprocess.run(
                words, input=stdin, capture_output=True, text=True, errors="replace", check=False, timeout=ANSWER_S,
                env=self._environment, cwd="/",
            )  # fmt: skip
        except subprocess.TimeoutExpired as cause:
            raise BackendUnavailable(f"Slurm does not answer: {words[0]} took {ANSWER_S:g} s") from cause
        except OSError as cause:
            raise BackendUnavailable(f"{words[0]} cannot be run: {cause.strerror}") from cause
        if done.returncode != 0 and any(word in done.stderr for word in AWAY):
            raise BackendUnavailable(f"Slurm does not answer: {_words_of(done)}")
        return done


def find_place(commands: SlurmCommands) -> tuple[SlurmPlace, SlurmNode]:
    """Find this machine among Slurm's nodes, and check that it has everything that the settings name.

    Raises:
        Unavailable: a command of Slurm's is missing.
        BackendUnavailable: Slurm does not answer.
        InvalidArgument: a setting names something that does not exist; the message lists what exists.
    """
    if missing := [name for name in COMMANDS if shutil.which(name) is None]:
        raise Unavailable(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not on the PATH; install Slurm's client "
            "commands (Debian: slurm-client), or choose another worker.box_backend"
        )
    wanted = SlurmPlace("", resolve(SLURM_PARTITION), resolve(SLURM_GRES), read_options(resolve(SLURM_OPTIONS)))
    node = find_node(commands.nodes(), resolve(SLURM_NODE), socket.gethostname())
    check_node(node, wanted, commands.partitions())
    return replace(wanted, node=node.name), node


def _words_of(done: "subprocess.CompletedProcess[str]") -> str:
    """Return a command's error message on one line, without its own name."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return "; ".join(line.partition("error: ")[2] or line for line in lines)[-500:] or f"status {done.returncode}"
