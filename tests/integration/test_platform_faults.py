"""Hardware that fails under the platform's jobs: what the user is told, and that the next attempt goes on elsewhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rdukit.snd import SndClient
from rdukit_platform.settings import Home
from support import first_short, shows
from support.forked import run_rdukit_forked
from support.platform.processes import PlatformUnderTest, build_digits, platform_under_test, short_folder

pytestmark = shows("jobs", "job", "faults", "nodes", "logreg")

FAST = {"RDUKIT_WORKER_LEASE_S": "8", "RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_KERNELS": "portable"}
HANG = {"class": "tile-hang", "data": {"resets_that_fail": None}}
EPOCHS = 10


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, None, FAST) as running:
        yield running


@pytest.fixture(scope="module")
def built(platform: PlatformUnderTest) -> dict[str, str]:
    return build_digits(platform)


def node(platform: PlatformUnderTest) -> SndClient:
    return SndClient(Home(platform.home).snd_socket)


def inject(platform: PlatformUnderTest, component: str, fault: dict[str, object]) -> str:
    with node(platform) as client:
        (uuid,) = client.call("inject", events=[{**fault, "component": component}])["faults"]
    assert isinstance(uuid, str)
    return uuid


def in_mid_train(job: dict[str, Any], attempt: int = 1) -> bool:
    progress = job["progress"] or {}
    return job["state"] == "running" and job["attempt"] == attempt and progress.get("step", 0) > 150


def tell(platform: PlatformUnderTest, *words: str) -> str:
    environment = {"RDUKIT_HOME": str(platform.home), "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    done = run_rdukit_forked(words, environment)
    done.check_returncode()
    return done.stdout


def console_text(platform: PlatformUnderTest, path: str) -> str:
    with httpx.Client(base_url=platform.running["url"], follow_redirects=True, trust_env=False) as browser:
        token = Path(platform.running["token_file"]).read_text().strip()
        browser.post("/console/login", data={"token": token}, headers={"Origin": platform.running["url"]})
        answer = browser.get(path)
        assert answer.status_code == 200
        return answer.text


@pytest.mark.long
def test_hardware_that_fails_before_the_box_is_up_is_told_too(
    platform: PlatformUnderTest, built: dict[str, str]
) -> None:
    job = platform.submit("train", box="logreg", inputs=built, parameters={"max_steps": 50}, tiles=2)["id"]
    tiles = platform.wait_job(job, lambda found: bool(found["attempts"] and found["attempts"][0]["tiles"]))
    assert tiles["state"] == "starting"
    uuid = inject(platform, tiles["attempts"][0]["tiles"][1], HANG)
    done = platform.wait_end(job, 120)
    assert (done["state"], len(done["attempts"])) == ("succeeded", 2), done
    assert done["attempts"][0]["error"]["code"] == "tile-fault"
    assert done["attempts"][0]["error"]["detail"]["fault_uuid"] == uuid


def test_a_job_that_broken_tiles_keep_out_says_so_and_starts_once_they_are_repaired(
    platform: PlatformUnderTest,
) -> None:
    uuid = inject(platform, "/NODE/XRDU_3/RDU_1/TILE_5", {"class": "tile-excluded"})
    job = platform.submit("preprocess", box="logreg", parameters={"limit": 10}, tiles=64)["id"]
    waits_for = platform.wait_job(job, lambda found: bool(found["waits_for"]))["waits_for"]
    assert "it needs 64 tiles" in waits_for and "of 64 are out of service" in waits_for
    (shown,) = platform.client.get("/v1/nodes")["nodes"]
    assert (shown["state"], shown["health"]) == ("up", "DEGRADED")
    assert {"DEGRADED", "FUNCTIONAL"} == {rdu["state"] for rdu in shown["rdus"]}
    (fault,) = [one for one in shown["faults"] if one["fault_uuid"] == uuid]
    page = console_text(platform, "/console/nodes")
    for words in ("DEGRADED", uuid, fault["recovery_act"], "/NODE/XRDU_3/RDU_1/TILE_5", "Excluded"):
        assert words in page
    with node(platform) as client:
        for rdu in client.status()["rdus"]:
            client.call("repair", component=rdu["comp_name"])
    assert platform.wait_end(job)["state"] == "succeeded"
    (shown,) = platform.client.get("/v1/nodes")["nodes"]
    assert (shown["health"], shown["faults"]) == ("FUNCTIONAL", [])


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "where", "code"),
    first_short([(HANG, "tile", "tile-fault"), ({"class": "ddr-uncorrectable"}, "channel", "dram-uncorrectable")]),
    ids=["a tile that hangs", "device memory that forgets"],
)
def test_a_job_whose_hardware_fails_tells_it_and_goes_on_elsewhere(
    platform: PlatformUnderTest, built: dict[str, str], fault: dict[str, object], where: str, code: str
) -> None:
    job = platform.submit(
        "train", box="logreg", inputs=built, parameters={"epochs": EPOCHS, "checkpoint_every": 50}, tiles=2
    )["id"]
    tiles = platform.wait_job(job, in_mid_train, 60)["attempts"][0]["tiles"]
    component = tiles[0] if where == "tile" else f"{tiles[0].rpartition('/')[0]}/DDRCH_0"
    uuid = inject(platform, component, fault)

    done = platform.wait_end(job, 120)
    assert (done["state"], len(done["attempts"])) == ("succeeded", 2), done
    assert done["result"]["steps"] == EPOCHS * 8000 // 32
    assert done["result"]["resumed_from_step"] >= 50
    first, second = done["attempts"]
    assert (first["outcome"], first["error"]["code"]) == ("node-failed", code)
    assert first["error"]["detail"]["fault_uuid"] == uuid
    assert first["error"]["detail"]["component"].startswith(component)
    assert first["error"]["detail"]["recovery"]
    assert not set(second["tiles"]) & ({component} if where == "tile" else set())
    assert "retrying" in platform.states(job)

    with node(platform) as client:
        (row,) = [one for one in client.call("faults")["faults"] if one["fault_uuid"] == uuid]
        leases = [one for one in client.call("applications")["applications"] if one["job"] == job]
        assert [(one["reason"], one["fault"]) for one in leases] == [
            ("released by a holder", None),
            ("released by a holder", uuid),
        ]
        tenant = leases[0]["tenant"]
        assert (row["job"], row["tenant"], row["application"]) == (job, tenant, "logreg-train")
        assert [one["job"] for one in client.status()["leases"]] == []
    shown = tell(platform, "job", "show", job)
    assert f"[{code}]" in shown and uuid in shown and component in shown
    page = console_text(platform, f"/console/jobs/{job}")
    assert code in page and uuid in page and component in page
