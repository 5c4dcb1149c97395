"""A training of four members on two nodes: placed together, joined by their workers, with the bits of one node.

What ends one of its parts ends the attempt once, and the next one goes on from the checkpoint.
"""

import asyncio
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rdukit.box.links import STORE_PORT, greet, link_key
from rdukit.fence.probe import what_holds, why_no_address
from rdukit_platform.artifacts.stores.opening import open_store
from rdukit_platform.backends.process_tree import tree_of
from rdukit_platform.settings import Home
from support import shows, wait_until
from support.platform.processes import NodeUnderTest, PlatformUnderTest, platform_under_test, short_folder

pytestmark = [
    shows("nodes", "scheduler", "jobs", "training", "logreg"),
    pytest.mark.skipif(
        not what_holds().holds or bool(why_no_address()), reason=f"no fence holds here: {what_holds().why}"
    ),
    pytest.mark.long,
]

FAST = {
    "RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_KERNELS": "portable", "RDUKIT_WORKER_LEASE_S": "4",
    "RDUKIT_NODE_NAME": "one", "RDUKIT_NODE_LINK_HOST": "127.0.0.1",
}  # fmt: skip
STEPS, BATCH, MEMBERS = 90, 16, 4
#: A node has 64: it has room for two such members.
WIDE = 32


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[PlatformUnderTest, NodeUnderTest]]:
    with short_folder() as home, platform_under_test(home, None, FAST) as platform, short_folder() as other:
        node = NodeUnderTest(platform, other, "two", environment=FAST)
        node.start()
        try:
            node.wait_joined()
            yield platform, node
        finally:
            node.stop()


@pytest.fixture(scope="module")
def built(two: tuple[PlatformUnderTest, NodeUnderTest]) -> dict[str, str]:
    """The inputs of a training."""
    compile_ = {"mode": "o0", "batch_size": BATCH, "members": MEMBERS}
    steps = [
        {"name": "preprocess", "box": "logreg", "verb": "preprocess"},
        {"name": "compile", "box": "logreg", "verb": "compile", "parameters": compile_},
    ]
    jobs = two[0].client.submit("/v1/pipelines", {"name": "digits", "steps": steps})["jobs"]
    done = [two[0].wait_end(job["id"], 120) for job in jobs]
    return {"dataset": done[0]["outputs"]["dataset"], "pef": done[1]["outputs"]["pef"]}


def train(platform: PlatformUnderTest, built: dict[str, str], tiles: int) -> str:
    parameters = {"max_steps": STEPS, "checkpoint_every": 2}
    body = {"box": "logreg", "verb": "train", "inputs": built, "parameters": parameters, "tiles": tiles}
    job: str = platform.client.submit("/v1/jobs", {**body, "members": MEMBERS, "max_attempts": 1})["id"]
    return job


def trained_tensors(platform: PlatformUnderTest, job: dict[str, Any], folder: Path) -> dict[str, torch.Tensor]:
    digest = platform.client.get(f"/v1/artifacts/{job['outputs']['checkpoint']}")["digest"]
    open_store(Home(platform.home)).materialize(digest, is_folder=True, target=folder)
    return load_file(folder / f"step-{STEPS}.safetensors")


def member(below: int, rank: int) -> int:
    """Return the process of a member somewhere below a process."""
    (found,) = [
        facts.pid for facts in tree_of(below)
        if Path(f"/proc/{facts.pid}/comm").read_text().strip() == f"rdukit-rank-{rank}"
    ]  # fmt: skip
    return found


def worker_of(platform: PlatformUnderTest, job: str, part: int) -> int:
    """Return the process of the worker that has a part of a job's attempt."""
    attempt = platform.job(job)["attempts"][-1]
    worker = attempt["worker"] if part == 0 else attempt["parts"][part - 1]["worker"]
    return int(worker.rpartition(":")[2])


def step_of(job: dict[str, Any]) -> int:
    return int((job["progress"] or {}).get("step") or 0)


def wait_attempt(platform: PlatformUnderTest, job: str, number: int) -> None:
    """Wait until an attempt at a job has done some steps."""
    platform.wait_job(job, lambda found: found["attempt"] == number and found["state"] == "running")
    begun = step_of(platform.job(job))
    platform.wait_job(job, lambda found: found["attempt"] == number and step_of(found) >= begun + 2)


def bridges_of(platform: PlatformUnderTest, job: str) -> list[str]:
    """Addresses of the bridges of both parts of a job's attempt under way."""
    query = """SELECT a.address, p.address FROM attempt_parts p JOIN attempts a ON a.id = p.attempt_id
               WHERE a.ended_at IS NULL AND a.job_id = ?"""
    with closing(sqlite3.connect(platform.home / "db.sqlite")) as database:
        (found,) = database.execute(query, (job,))
    return list(found)


def refused_streams(platform: PlatformUnderTest, job: str) -> int:
    """How many streams between a job's nodes were refused."""
    query = {"outcome": "refused", "action": "attempt", "about": job}
    return sum(row["count"] for row in platform.client.get("/v1/audit", **query)["entries"])


async def ask(address: str, key: bytes) -> None:
    """Ask a bridge for a stream to the store of the first member."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        await asyncio.wait_for(greet(reader, writer, key, 1, 0, STORE_PORT), 30.0)
    finally:
        writer.close()


def is_free(platform: PlatformUnderTest) -> bool:
    """Return whether no lease is held on any node."""
    return not any(node["leases"] for node in platform.client.get("/v1/nodes")["nodes"])


def test_members_on_two_nodes_train_the_bits_of_one_whatever_ends_one_of_their_parts(
    two: tuple[PlatformUnderTest, NodeUnderTest], built: dict[str, str], tmp_path: Path
) -> None:
    platform, node = two
    alone = train(platform, built, WIDE // 4)
    expected = platform.wait_end(alone, 300)
    assert expected["state"] == "succeeded", expected

    job = train(platform, built, WIDE)
    wait_attempt(platform, job, 1)
    found = {each["name"]: each for each in platform.client.get("/v1/nodes")["nodes"]}
    assert {name: [lease["job"] for lease in each["leases"]] for name, each in found.items()} == {
        "one": [job, job], "two": [job, job],
    }  # fmt: skip
    first, second = bridges_of(platform, job)
    assert platform.job(job)["attempts"][0]["parts"][0]["members"] == 2

    # Whoever has the key of another attempt, or none, gets no stream, which is recorded; the training goes on.
    for address, key in ((first, link_key("att-1", "token")), (first, bytes(32)), (second, bytes(32))):
        with pytest.raises(EOFError):
            asyncio.run(ask(address, key))
    wait_until(lambda: refused_streams(platform, job) == 3)

    os.kill(member(node.pid, 3), signal.SIGKILL)
    wait_attempt(platform, job, 2)
    os.kill(worker_of(platform, job, 1), signal.SIGKILL)
    wait_attempt(platform, job, 3)
    os.kill(worker_of(platform, job, 0), signal.SIGKILL)
    wait_attempt(platform, job, 4)
    platform.client.post(f"/v1/jobs/{job}/pause")
    platform.wait_job(job, lambda found: found["state"] == "paused")
    wait_until(lambda: is_free(platform))
    platform.client.post(f"/v1/jobs/{job}/resume")
    wait_attempt(platform, job, 5)
    platform.client.post("/v1/nodes/two/drain", {"deadline_s": 0, "reason": "new DIMM"})
    platform.wait_job(job, lambda found: found["attempts"][-1]["outcome"] == "withdrawn")
    wait_until(lambda: is_free(platform))
    platform.client.post("/v1/nodes/two/uncordon", {})

    trained = platform.wait_end(job, 300)
    assert trained["state"] == "succeeded", trained
    outcomes = [attempt["outcome"] for attempt in trained["attempts"]]
    assert outcomes == ["box-killed", "expired", "expired", "paused", "withdrawn", "succeeded"]
    assert all([part["node"] for part in attempt["parts"]] == ["two"] for attempt in trained["attempts"])
    assert platform.states(job).count("succeeded") == 1
    assert (trained["result"]["members"], trained["result"]["steps"]) == (MEMBERS, STEPS)
    assert trained["result"]["resumed_from_step"] > 0
    one_node, two_nodes = (
        trained_tensors(platform, each, tmp_path / name) for name, each in (("one", expected), ("two", trained))
    )
    assert one_node.keys() == two_nodes.keys()
    assert all(torch.equal(tensor, two_nodes[name]) for name, tensor in one_node.items())
    wait_until(lambda: is_free(platform))
    wait_until(lambda: not [path for home in (platform.home, node.home) for path in (home / "work").iterdir()])
