"""``rdukit node slurm``: health check, prolog and epilog of a node that Slurm manages.

A node is drained only if it is known to be sick. The state of a silent daemon is unknown: load, a restart or a slow
disk are no hardware faults. This command resumes only nodes that it has drained.

Source: ours; slurm.conf(5) on ``HealthCheckProgram``, ``Prolog`` and ``Epilog``.
"""

import os
import re
import socket
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import click

from rdukit.errors import RdukitError, Unavailable
from rdukit_node.cli.fault_views import find_severity, judge
from rdukit_node.cli.output import Reader, connect_admin, node_options

#: Prefix of this command's drain reasons: drains of others are not resumed.
MARK: Final = "rdukit: "
_SCONTROL_S: Final = 20.0
#: Exit status of a prolog that refuses the node: Slurm drains it and queues the job again.
_REFUSED: Final = 1


class SlurmAction(StrEnum):
    """Changes of a node's state in Slurm."""

    NOTHING = "nothing"
    DRAIN = "drain"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """A node's health from its daemon; ``is_sick`` is ``None`` if no daemon answers."""

    is_sick: bool | None
    text: str


def slurm_action(health: NodeHealth, drained_for: str | None) -> SlurmAction:
    """Return the action for a node (pure).

    Args:
        drained_for: Slurm's reason, if the node is drained; ``None``: it is not.
    """
    if health.is_sick is None:
        return SlurmAction.NOTHING
    if health.is_sick:
        return SlurmAction.DRAIN if drained_for is None else SlurmAction.NOTHING
    return SlurmAction.RESUME if drained_for is not None and drained_for.startswith(MARK) else SlurmAction.NOTHING


def drain_reason(text: str) -> str | None:
    """Return a node's drain reason from the output of ``scontrol show node``; ``None``: not drained (pure)."""
    state = re.search(r"State=(\S+)", text)
    if state is None or "DRAIN" not in state[1]:
        return None
    reason = re.search(r"Reason=(.*?)(?: \[\S+@\S+\])?\s*$", text, re.MULTILINE)
    return "" if reason is None else reason[1].strip()


@click.group()
def slurm() -> None:
    """Health check, prolog and epilog for Slurm.

    Example: HealthCheckProgram=/usr/local/sbin/rdukit-health, a script with: rdukit node slurm health
    """


@slurm.command()
@click.option(
    "--severity", default="Major", show_default=True, help="Lowest severity of faults that count as an unhealthy node."
)
@node_options
def health(socket_file: Path | None, severity: str) -> None:
    """Drain the node in Slurm if it is sick, and resume it when it is healthy again.

    A silent daemon changes nothing. Drains of others are left alone.

    Example: rdukit node slurm health --severity Critical

    Example: rdukit node slurm health
    """
    _apply(ask_health(socket_file, severity))


@slurm.command()
@click.option(
    "--severity", default="Major", show_default=True, help="Lowest severity of faults that count as an unhealthy node."
)
@node_options
def prolog(socket_file: Path | None, severity: str) -> None:
    """Refuse a job on a sick node: drain the node, and let Slurm queue the job again.

    Slurm also drains a node after a failed prolog, but with its own reason, which ``health`` would not resume.

    Example: rdukit node slurm prolog

    Example: rdukit node slurm prolog --severity Critical
    """
    found = ask_health(socket_file, severity)
    if not found.is_sick:
        click.echo(f"rdukit: {found.text}", err=True)
        return
    try:
        _apply(found)
    except Unavailable as error:
        click.echo(f"rdukit: {found.text}; the node is not drained: {error.message}", err=True)
    raise SystemExit(_REFUSED)


@slurm.command()
@click.option(
    "--severity", default="Major", show_default=True, help="Lowest severity of faults that count as an unhealthy node."
)
@node_options
def epilog(socket_file: Path | None, severity: str) -> None:
    """End the remaining leases of the job ($SLURM_JOB_ID), then act like ``health``.

    Example: rdukit node slurm epilog

    Example: rdukit node slurm epilog --severity Major
    """
    number = os.environ.get("SLURM_JOB_ID", "")
    try:
        if number:
            with connect_admin(socket_file) as client:
                for lease in left_leases(dict(client.status()), f"slurm-{number}"):
                    client.call("evict", lease=lease, reason=f"Slurm job {number} has ended")
                    click.echo(f"rdukit: lease {lease} of Slurm job {number} ended", err=True)
    except RdukitError as error:
        click.echo(f"rdukit: leases of Slurm job {number} are not ended: {error.message}", err=True)
    _apply(ask_health(socket_file, severity))


def left_leases(status: dict[str, Any], job: str) -> list[str]:
    """Return the leases of a job (pure). ``job``: its id in the tools, such as ``slurm-17``."""
    return [str(lease["id"]) for lease in status["leases"] if lease["job"] == job]


def ask_health(socket_file: Path | None, severity: str) -> NodeHealth:
    """Query the node's daemon, never its database.

    Raises:
        InvalidArgument: ``severity`` is not a severity.
    """
    least = find_severity(severity)
    try:
        with Reader(socket_file) as reader:
            faults, rdus = reader.ask("faults")["faults"], reader.ask("op_state")["rdus"]
    except Unavailable as error:
        return NodeHealth(None, f"the node is unknown: {error.message}")
    verdict = judge(faults, rdus, least, is_current=True)
    return NodeHealth(verdict.exit_status == 1, verdict.line)


def _apply(found: NodeHealth) -> None:
    """Apply the action for a node's health in Slurm."""
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    action = slurm_action(found, drain_reason(_scontrol("show", "node", name)))
    click.echo(f"rdukit: {found.text}; {action}", err=True)
    if action is SlurmAction.DRAIN:
        _scontrol("update", f"nodename={name}", "state=drain", f"reason={MARK}{found.text}"[:200])
    elif action is SlurmAction.RESUME:
        _scontrol("update", f"nodename={name}", "state=resume")


def _scontrol(*words: str) -> str:
    try:
        done = subprocess.run(
            ["scontrol", *words], capture_output=True, text=True, check=False, timeout=_SCONTROL_S
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise Unavailable(f"scontrol {words[0]} failed: {cause}; install Slurm's client commands") from cause
    if done.returncode:
        raise Unavailable(f"scontrol {' '.join(words)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
