"""A training of four members on two nodes: placed together, joined by their workers, with the bits of one node."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rdukit.fence.probe import what_holds, why_no_address
from rdukit_platform.artifacts.stores.opening import open_store
from rdukit_platform.settings import Home
from support import wait_until
from support.platform.processes import NodeUnderTest, PlatformUnderTest, platform_under_test, short_folder

pytestmark = pytest.mark.skipif(
    not what_holds().holds or bool(why_no_address()), reason=f"no fence holds here: {what_holds().why}"
)

FAST = {
    "RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_KERNELS": "portable",
    "RDUKIT_NODE_NAME": "one", "RDUKIT_NODE_LINK_HOST": "127.0.0.1",
}  # fmt: skip
STEPS, BATCH, MEMBERS = 14, 16, 4
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


def step_of(job: dict[str, Any]) -> int:
    return int((job["progress"] or {}).get("step") or 0)


def wait_steps(platform: PlatformUnderTest, job: str, more: int) -> None:
    """Wait until a job's current attempt has done some steps more."""
    attempt = platform.wait_job(job, lambda found: found["state"] == "running")["attempt"]
    begun = step_of(platform.job(job))
    platform.wait_job(job, lambda found: found["attempt"] == attempt and step_of(found) >= begun + more)


def parts_of(platform: PlatformUnderTest) -> list[tuple[str, str]]:
    """Nodes and addresses of the further parts of attempts under way."""
    query = """SELECT p.node, p.address FROM attempt_parts p JOIN attempts a ON a.id = p.attempt_id
               WHERE a.ended_at IS NULL AND p.address IS NOT NULL"""
    with closing(sqlite3.connect(platform.home / "db.sqlite")) as database:
        return list(database.execute(query))


def test_members_on_two_nodes_train_the_bits_of_one(
    two: tuple[PlatformUnderTest, NodeUnderTest], built: dict[str, str], tmp_path: Path
) -> None:
    platform, node = two
    alone = train(platform, built, WIDE // 4)
    expected = platform.wait_end(alone, 300)
    assert expected["state"] == "succeeded", expected

    job = train(platform, built, WIDE)
    wait_steps(platform, job, 2)
    found = {each["name"]: each for each in platform.client.get("/v1/nodes")["nodes"]}
    assert {name: [lease["job"] for lease in each["leases"]] for name, each in found.items()} == {
        "one": [job, job], "two": [job, job],
    }  # fmt: skip
    (part,) = parts_of(platform)
    assert part[1].startswith("127.0.0.1:")
    assert platform.job(job)["attempts"][0]["parts"][0]["members"] == 2
    trained = platform.wait_end(job, 300)
    assert trained["state"] == "succeeded", trained
    assert trained["attempts"][-1]["outcome"] == "succeeded"
    assert (trained["result"]["members"], trained["result"]["steps"]) == (MEMBERS, STEPS)
    one_node, two_nodes = (
        trained_tensors(platform, each, tmp_path / name) for name, each in (("one", expected), ("two", trained))
    )
    assert one_node.keys() == two_nodes.keys()
    assert all(torch.equal(tensor, two_nodes[name]) for name, tensor in one_node.items())
    wait_until(lambda: not any(each["leases"] for each in platform.client.get("/v1/nodes")["nodes"]))
    wait_until(lambda: not [path for home in (platform.home, node.home) for path in (home / "work").iterdir()])
