"""A training of two members on two RDUs of the platform's node: placed together, and together tried again."""

import os
import signal
from pathlib import Path

import pytest

from rdukit.errors import IllegalValue
from rdukit_platform.backends.process_tree import tree_of
from support import shows
from support.forked import run_python
from support.platform.processes import platform_under_test, short_folder

pytestmark = shows("jobs", "scheduler", "training", "logreg")

FAST = {"RDUKIT_WORKER_LEASE_S": "4", "RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_KERNELS": "portable"}
STEPS, BATCH = 150, 16


#: Forks two members, which prepare data instead of training: one does it, the other is killed.
FORKING = """
import json, sys, tempfile
from rdukit_modelbox.contract.box import Verb, find_box_file, load_box
from rdukit_modelbox.contract.check_parameters import check_parameters
from rdukit_modelbox.operations.child import main
from rdukit_modelbox.operations.forks import can_fork_members, fork_member

file, verb = find_box_file("logreg"), Verb("preprocess")
parameters = check_parameters(load_box(file), verb, {})
request = {"box_file": str(file), "verb": verb, "parameters": parameters, "inputs": {}, "output": sys.argv[1]}
line = json.dumps({**request, "is_follower": True}).encode() + b"\\n"
with tempfile.TemporaryFile() as events:
    assert can_fork_members()
    member, killed = (fork_member(main, line, events.fileno(), rank, {"RANK": str(rank)}) for rank in (1, 2))
    killed.kill()
    print(member.wait(), killed.wait(), flush=True)
    killed.kill()
"""


def second_member(below: int) -> int:
    """Return the process of the member with rank 1 somewhere below a process."""
    (found,) = [
        facts.pid for facts in tree_of(below)
        if Path(f"/proc/{facts.pid}/comm").read_text().strip() == "rdukit-rank-1"
    ]  # fmt: skip
    return found


def test_an_operation_forks_its_other_members(tmp_path: Path) -> None:
    done = run_python(["-c", FORKING, str(tmp_path)], kind="sambaflow")
    assert (done.returncode, done.stdout) == (0, f"0 {-signal.SIGKILL}\n"), done.stderr
    assert any(tmp_path.iterdir())


@pytest.mark.long
def test_two_members_train_one_model_on_two_rdus_and_the_loss_of_one_ends_both_once() -> None:
    compile_ = {"mode": "o0", "batch_size": BATCH, "members": 2}
    train = {"max_steps": STEPS, "checkpoint_every": 20}
    built = {"pef": "@compile.pef", "dataset": "@preprocess.dataset"}
    steps = [
        {"name": "preprocess", "box": "logreg", "verb": "preprocess"},
        {"name": "compile", "box": "logreg", "verb": "compile", "parameters": compile_},
        {"name": "train", "box": "logreg", "verb": "train", "parameters": train, "inputs": built, "tiles": 8,
         "members": 2, "max_attempts": 1},
    ]  # fmt: skip
    with short_folder() as home, platform_under_test(home, None, FAST) as platform:
        for asked, words in (({"verb": "compile"}, "runs in one process"), ({"tiles": 64}, "no network between them")):
            with pytest.raises(IllegalValue, match=words):
                platform.client.submit("/v1/jobs", {"box": "logreg", "verb": "train", "members": 2, **asked})
        jobs = platform.client.submit("/v1/pipelines", {"name": "digits", "steps": steps, "cache": False})["jobs"]
        job = jobs[2]["id"]
        platform.wait_job(job, lambda found: ((found["progress"] or {}).get("step") or 0) > 40, 300)
        (node,) = platform.client.get("/v1/nodes")["nodes"]
        assert [lease["job"] for lease in node["leases"]] == [job, job]
        rdus = {tile["lease"]: tile["rdu"] for tile in node["tiles"] if tile["lease"]}
        assert len(rdus) == 2 and len(set(rdus.values())) == 2, "each member has an RDU of its own"
        os.kill(second_member(int(platform.running["pid"])), signal.SIGKILL)
        trained = platform.wait_end(job, 120)
        assert trained["state"] == "succeeded", trained
        assert [attempt["outcome"] for attempt in trained["attempts"]] == ["box-killed", "succeeded"]
        assert "member 1 of 2 was ended by SIGKILL" in trained["attempts"][0]["error"]["message"]
        assert len(trained["attempts"][1]["tiles"]) == 16
        assert platform.states(job).count("succeeded") == 1
        assert (trained["result"]["members"], trained["result"]["steps"]) == (2, STEPS)
        assert trained["result"]["resumed_from_step"] >= 20
        assert trained["result"]["accuracy"] > 0.85
        (node,) = platform.client.get("/v1/nodes")["nodes"]
        assert node["leases"] == []
        clone = {"members": 1, "inputs": {"checkpoint": trained["outputs"]["checkpoint"]}}
        for way, state in (("resume", "failed"), ("rows", "succeeded")):
            changes = {"parameters": {"continue_as": way, "max_steps": 310}, **clone}
            ended = platform.wait_end(platform.client.submit(f"/v1/jobs/{job}/clone", changes)["id"], 120)
            assert ended["state"] == state, ended
            if way == "resume":
                assert "pass continue_as=rows" in ended["attempts"][-1]["error"]["message"]
        # an epoch has an even number of steps of 16 rows: both leave out the same rest
        assert ended["result"]["resumed_from_step"] == 2 * STEPS
