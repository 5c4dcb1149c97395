"""Boxes that outlive their killed worker are ended, and only they."""

from pathlib import Path

from support import shows
from support.platform.processes import has_ended, platform_under_test, short_folder

pytestmark = shows("jobs", "job-boxes")

BOX = Path(__file__).parent / "platform_box.py"
FAST = {
    "RDUKIT_WORKER_LEASE_S": "2",
    "RDUKIT_JOB_BACKOFF_S": "0.1",
    "RDUKIT_SCHEDULER_REPUBLISH_S": "1",
    # In a fence a box ends with its worker, whatever it does.
    "RDUKIT_WORKER_FENCE": "off",
    "COUNTER_OUTLIVES_ITS_WORKER": "1",
    "RDUKIT_WORKER_BOX_ENVIRONMENT": "COUNTER_OUTLIVES_ITS_WORKER",
}


def test_boxes_of_a_killed_worker_are_ended_before_their_jobs_go_on_and_when_nobody_waits_for_them() -> None:
    with short_folder() as home, platform_under_test(home, BOX, FAST) as platform:
        dataset = platform.wait_end(platform.submit("preprocess")["id"])["outputs"]["dataset"]
        boxes: dict[str, int] = {}
        for name, steps in (("goes on", 60), ("is cancelled", 1000)):
            body = {"steps": steps, "step_s": 0.05}
            job_id = platform.submit("train", inputs={"dataset": dataset}, parameters=body, name=name)["id"]
            found = platform.wait_job(job_id, lambda job: bool(job["progress"]) and job["progress"]["step"] >= 5)
            (attempt,) = found["attempts"]
            assert attempt["box"]["backend"] == "process"
            boxes[job_id] = int(attempt["box"]["id"])
        goes_on, is_cancelled = boxes
        platform.kill("worker")
        assert not any(has_ended(pid, 0.3) for pid in boxes.values()), "nothing but the platform ends them"
        platform.client.post(f"/v1/jobs/{is_cancelled}/cancel")
        platform.wait_job(is_cancelled, lambda _: has_ended(boxes[is_cancelled], 0.1))

        done = platform.wait_end(goes_on)
        assert has_ended(boxes[goes_on], 0.1)
        assert [attempt["outcome"] for attempt in done["attempts"]] == ["expired", "succeeded"]
        assert done["result"]["resumed_from_step"] >= 5
        assert platform.states(goes_on).count("succeeded") == 1
        (node,) = platform.client.get("/v1/nodes")["nodes"]
        assert node["leases"] == []
        assert not list((home / "run" / "boxes").rglob("*.json"))
