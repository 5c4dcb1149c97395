"""Slurm's jobs as values: what is asked of it, what it says, and what its ends mean for a job of the platform."""

from pathlib import Path

import pytest

from rdukit.box.image import BoxEnd
from rdukit.errors import InvalidArgument, Unavailable
from rdukit_platform.backends.contract import BoxLimits, BoxOwner, BoxSpec, OwnedBox
from rdukit_platform.backends.slurm_jobs import (
    describe_end,
    describe_wait,
    end_of,
    read_comment,
    read_looks,
    submit_options,
)
from rdukit_platform.backends.slurm_place import SlurmNode, SlurmPlace, find_node, read_nodes, read_options
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.worker.box_ends import outcome_of
from support import shows

pytestmark = shows("slurm")

PLACE = SlurmPlace("n1", "rdu", "rdu_tile", ("--account=ml",))


def test_a_box_asks_for_its_tiles_its_time_and_its_node_and_is_not_queued_again_by_slurm() -> None:
    limits = BoxLimits(memory_bytes=(1 << 30) + 1)
    spec = BoxSpec("logreg", Path("/w"), limits=limits, owner=BoxOwner("job-1", 2), tiles=3, run_limit_s=90.0)
    assert {
        "--gres=rdu_tile:3", "--time=3", "--nodelist=n1", "--partition=rdu", "--no-requeue",
        "--comment=rdukit job-1 2 logreg", "--mem=1025M", "--account=ml",
    } <= set(submit_options(spec, PLACE))  # fmt: skip
    plain = submit_options(BoxSpec("logreg", Path("/w")), SlurmPlace("n1", gres=""))
    assert not [word for word in plain if word.startswith(("--gres", "--time", "--partition", "--mem"))]


@pytest.mark.parametrize("text", ["--gres=tile:9", "--time=1", "--array=1-9", "--wrap=id", "-A ml", "ml", "'"])
def test_options_that_are_the_platforms_own_or_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"slurm\.options"):
        read_options(text)


def test_only_our_comments_name_a_box() -> None:
    owned = OwnedBox("7", "logreg", BoxOwner("job-1", 2))
    assert read_comment("7", "rdukit job-1 2 logreg") == owned
    for other in ("(null)", "", "rdukit - 0 logreg", "rdukit job-1 x logreg", "rdukit job-1 2 a b", "mine job-1 2 a"):
        assert read_comment("7", other) is None
    text = "7|RUNNING|0|None|rdukit job-1 2 logreg|\n8|FAILED|768|NonZeroExitCode|it has | in it|\nrubbish\n"
    seven, eight = read_looks(text)
    assert (seven.owned, seven.is_waiting, seven.has_ended) == (owned, False, False)
    assert (eight.owned, eight.status, eight.has_ended) == (None, 3, True)


@pytest.mark.parametrize(
    ("line", "end", "outcome"),
    [
        ("CANCELLED|0", BoxEnd.WITHDRAWN, AttemptOutcome.WITHDRAWN),
        ("PREEMPTED|0", BoxEnd.PREEMPTED, AttemptOutcome.PREEMPTED),
        ("TIMEOUT|0", BoxEnd.TIMED_OUT, AttemptOutcome.RUN_LIMIT_EXCEEDED),
        ("NODE_FAIL|0", BoxEnd.KILLED, AttemptOutcome.BOX_KILLED),
        ("FAILED|256", None, AttemptOutcome.BOX_LOST),
        ("OUT_OF_MEMORY|9", None, AttemptOutcome.BOX_LOST),
    ],
)
def test_each_end_of_an_allocation_has_its_outcome(line: str, end: BoxEnd | None, outcome: AttemptOutcome) -> None:
    (look,) = read_looks(f"7|{line}|None|rdukit job-1 1 logreg|")
    assert end_of(look) == end and "Slurm job 7" in describe_end(look)
    assert outcome_of(Unavailable("gone", end=str(end)), None, Path("/")) is outcome


def test_a_job_without_a_script_says_what_it_waits_for_also_in_its_allocation() -> None:
    waiting, given = read_looks("7|PENDING|0|Resources|rdukit job-1 1 logreg|\n8|RUNNING|0|None|rdukit job-1 1 logreg|")
    assert describe_wait(waiting, "n1", 0.0) == ("Slurm job 7 waits for node n1: Resources", "Resources")
    assert describe_wait(given, "n1", 1.0) == ("", "")
    why, code = describe_wait(given, "n1", 60.0)
    assert "Slurm job 8 is RUNNING on node n1, where its script has not begun" in why
    assert code in set(WaitCode)


def test_this_machine_is_found_among_slurms_nodes() -> None:
    text = (
        "NodeName=n1 Arch=x86_64 Gres=rdu_tile:64(S:0-1,3),gpu:a100:2 NodeHostName=vm State=IDLE+DRAIN "
        "Partitions=rdu,short \nNodeName=n2 Gres=(null) NodeHostName=other State=IDLE Partitions=rdu\n"
    )
    one, two = read_nodes(text)
    assert one == SlurmNode("n1", "vm", "IDLE+DRAIN", ["rdu", "short"], {"rdu_tile": 64, "gpu": 2})
    assert two.gres == {}
    assert find_node([one, two], "", "vm.example.org") is one
    assert find_node([one, two], "n2", "vm") is two
    with pytest.raises(
        InvalidArgument,
        match=r"no nodes on this machine, third; set slurm\.node to this machine's "
        r"node, one of n1 \(on vm\), n2 \(on oth",
    ):
        find_node([one, two], "", "third")
