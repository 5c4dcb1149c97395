"""What Slurm is told of a node: sick nodes are drained, unknown ones are left alone, ours are resumed."""

import pytest

from rdukit_node.cli.slurm_node import NodeHealth, SlurmAction, drain_reason, left_leases, slurm_action
from support import shows

pytestmark = shows("slurm", "node", "node-slurm")

WELL, SICK, UNKNOWN = NodeHealth(False, "healthy"), NodeHealth(True, "faulty"), NodeHealth(None, "no answer")
#: As Slurm 22.05 prints it.
SHOWN = """NodeName=n1 Arch=x86_64 CoresPerSocket=1
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=rdu
   {reason}
"""


@pytest.mark.parametrize(
    ("health", "drained_for", "action"),
    [
        (SICK, None, SlurmAction.DRAIN),
        (SICK, "rdukit: faulty", SlurmAction.NOTHING),
        (SICK, "power works", SlurmAction.NOTHING),
        (WELL, None, SlurmAction.NOTHING),
        (WELL, "rdukit: faulty", SlurmAction.RESUME),
        (WELL, "power works", SlurmAction.NOTHING),
        (UNKNOWN, None, SlurmAction.NOTHING),
        (UNKNOWN, "rdukit: faulty", SlurmAction.NOTHING),
    ],
)
def test_a_node_is_drained_only_if_it_is_known_to_be_sick(
    health: NodeHealth, drained_for: str | None, action: SlurmAction
) -> None:
    assert slurm_action(health, drained_for) is action


def test_the_reason_of_a_drain_is_read_from_slurms_words() -> None:
    assert drain_reason(SHOWN.format(state="IDLE", reason="Comment=(null)")) is None
    told = SHOWN.format(state="IDLE+DRAIN", reason="Reason=rdukit: faulty: Major X [root@2026-11-29T10:00:00]")
    assert drain_reason(told) == "rdukit: faulty: Major X"
    assert drain_reason(SHOWN.format(state="DRAINED", reason="")) == ""


def test_the_leases_of_one_job_are_ended() -> None:
    leases = [{"id": "l1", "job": "slurm-1"}, {"id": "l2", "job": "slurm-17"}, {"id": "l3", "job": None}]
    assert left_leases({"leases": leases}, "slurm-1") == ["l1"]
