"""Jobs of the platform in containers: their outputs, their limits, and what a killed worker leaves."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from compose_stack import PATIENCE_S

from rdukit.errors import InvalidArgument, NotFound
from rdukit_modelbox.contract.box import find_box_file
from rdukit_modelbox.contract.new_box import new_box_files
from rdukit_modelbox.image.build import build_layout
from rdukit_platform.backends.engines import PodmanBackend
from support import shows
from support.platform.processes import PlatformUnderTest, platform_under_test, short_folder

pytestmark = [
    shows("job-boxes", "images", "jobs", "modelbox-own-model", "logreg"),
    pytest.mark.timeout(900),
    pytest.mark.long,
]
MEMORY = 4 << 30


@pytest.fixture(scope="module")
def platform(podman_environment: dict[str, str], podman_image: str) -> Iterator[PlatformUnderTest]:
    settings = {
        "CONTAINER_HOST": podman_environment["RDUKIT_PODMAN_URL"],
        "RDUKIT_WORKER_BOX_BACKEND": "podman",
        "RDUKIT_WORKER_BOX_IMAGE": podman_image,
        "RDUKIT_WORKER_BOX_MEMORY": str(MEMORY),
        "RDUKIT_WORKER_BOX_PIDS": "500",
        # Each job has a container of its own; those that stay have tests of their own.
        "RDUKIT_WORKER_BOX_IDLE_S": "0",
        "RDUKIT_WORKER_LEASE_S": "4",
        "RDUKIT_JOB_BACKOFF_S": "0.1",
        # Of root's boxes the user is another one.
        "RDUKIT_SND_SOCKET_MODE": "666",
    }
    with short_folder() as home, platform_under_test(home, None, settings) as running:
        yield running


def test_training_in_containers_survives_a_killed_worker_and_leaves_none_behind(
    platform: PlatformUnderTest, podman_backend: PodmanBackend, podman_environment: dict[str, str]
) -> None:
    built = {"pef": "@compile.pef", "dataset": "@preprocess.dataset"}
    train = {"epochs": 15, "checkpoint_every": 50}
    steps = [
        {"name": "preprocess", "box": "logreg", "verb": "preprocess"},
        {"name": "compile", "box": "logreg", "verb": "compile", "parameters": {"mode": "o0"}},
        {"name": "train", "box": "logreg", "verb": "train", "parameters": train, "inputs": built},
    ]
    pipeline = platform.client.submit("/v1/pipelines", {"name": "digits", "steps": steps})
    jobs = {job["step"]: job["id"] for job in pipeline["jobs"]}

    for step in ("preprocess", "compile"):
        made = platform.wait_end(jobs[step], PATIENCE_S)
        assert made["state"] == "succeeded", made

    def is_in_mid_train(job: dict[str, object]) -> bool:
        assert job["state"] not in {"failed", "cancelled"}, job
        progress = job["progress"]
        return isinstance(progress, dict) and progress.get("stage") == "train" and progress["step"] > 200

    running = platform.wait_job(jobs["train"], is_in_mid_train, PATIENCE_S)
    (attempt,) = running["attempts"]
    assert attempt["box"]["backend"] == "podman"
    assert networks_of(podman_environment, attempt["box"]["id"]) == "none", "whoever it is could reach the gateway"
    limits = attempt["box"]["limits"]
    assert set(limits) == {"memory", "pids", "disk"} and all(told.startswith("applied") for told in limits.values())
    platform.kill("worker")
    (left,) = podman_backend.owned()
    assert (left.id, left.owner.id, left.owner.epoch) == (attempt["box"]["id"], jobs["train"], 1)

    trained = platform.wait_end(jobs["train"], 180)
    assert trained["state"] == "succeeded", trained
    assert [attempt["outcome"] for attempt in trained["attempts"]] == ["expired", "succeeded"]
    assert platform.states(jobs["train"]).count("succeeded") == 1
    assert trained["result"]["steps"] == 15 * 8000 // 32
    assert trained["result"]["resumed_from_step"] >= 50
    assert not podman_backend.owned()
    (node,) = platform.client.get("/v1/nodes")["nodes"]
    assert node["leases"] == []


def test_a_container_that_is_killed_under_its_job_is_told_and_the_job_is_tried_again(
    platform: PlatformUnderTest, podman_backend: PodmanBackend
) -> None:
    job = platform.submit("preprocess", box="logreg")
    platform.wait_job(job["id"], lambda _: bool(podman_backend.owned()), 60)
    (box,) = podman_backend.owned()
    podman_backend.reap(box)
    done = platform.wait_end(job["id"], 120)
    assert [attempt["outcome"] for attempt in done["attempts"]] == ["box-lost", "succeeded"]
    assert not podman_backend.owned()


def test_a_cancelled_jobs_container_ends(platform: PlatformUnderTest, podman_backend: PodmanBackend) -> None:
    job = platform.submit("compile", box="logreg", parameters={"mode": "o0"})
    platform.wait_job(job["id"], lambda _: bool(podman_backend.owned()), 60)
    platform.client.post(f"/v1/jobs/{job['id']}/cancel")
    platform.wait_job(job["id"], lambda _: not podman_backend.owned(), 60)
    folder = Path(platform.home) / "work" / str(job["id"])
    platform.wait_job(job["id"], lambda _: not folder.exists(), 10)


@pytest.fixture(scope="module")
def own_image(podman_environment: dict[str, str], layout: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of the box ``own``, with a model of its own, in podman's storage."""
    folder = tmp_path_factory.mktemp("own")
    for name, data in new_box_files("own", find_box_file("logreg").read_text(), has_module=True).items():
        (folder / name).write_bytes(data)
    build_layout(str(folder), layout, base=f"oci:{layout}:rdukit-base")
    image = podman(podman_environment, "pull", "--quiet", f"oci:{layout}:own")
    podman(podman_environment, "tag", image, "localhost/own:1")
    return "localhost/own:1"


def networks_of(environment: dict[str, str], container: str) -> str:
    """How a container is connected."""
    return podman(environment, "container", "inspect", "--format", "{{.HostConfig.NetworkMode}}", container)


def podman(environment: dict[str, str], *words: str) -> str:
    """The last line of what podman says."""
    done = subprocess.run(["podman", *words], env=environment, capture_output=True, text=True, check=True)
    return (done.stdout.strip().splitlines() or [""])[-1]


def test_a_tenants_own_image_runs_by_its_digest(
    platform: PlatformUnderTest, own_image: str, podman_environment: dict[str, str]
) -> None:
    first = platform.client.install_image(own_image)
    digest = podman(podman_environment, "image", "inspect", "--format", "{{.Id}}", own_image)
    assert (first["box"], first["image"], first["artifact"]) == ("own:1", own_image, None)
    assert first["digest"].removeprefix("sha256:") == digest.removeprefix("sha256:")
    assert platform.client.install_image(own_image)["is_new"] is False
    # The name may come to mean another image: the version does not.
    podman(podman_environment, "untag", own_image)
    with pytest.raises(NotFound, match="podman has no image 'localhost/own:1'"):
        platform.client.install_image(own_image)
    done = platform.wait_end(platform.submit("preprocess", box="own", parameters={"limit": 100})["id"], PATIENCE_S)
    assert (done["box"], done["state"], done["attempts"][0]["box"]["backend"]) == ("own:1", "succeeded", "podman")
    compiled = platform.wait_end(platform.submit("compile", box="own:1", parameters={"mode": "o0"})["id"], PATIENCE_S)
    assert compiled["state"] == "succeeded", compiled


def test_a_tenants_own_folder_runs_in_a_container_that_cannot_write_it(
    platform: PlatformUnderTest, tmp_path: Path
) -> None:
    for name, data in new_box_files("mounted", find_box_file("logreg").read_text(), has_module=True).items():
        (tmp_path / name).write_bytes(data)
    writes = "import pathlib\npathlib.Path(__file__).with_name('spy').touch()\n"
    platform.client.install_box(tmp_path)
    compiled = platform.wait_end(platform.submit("compile", box="mounted", parameters={"mode": "o0"})["id"], PATIENCE_S)
    assert (compiled["state"], compiled["box"]) == ("succeeded", "mounted:1"), compiled
    with (tmp_path / "model.py").open("a") as model:
        model.write(writes)
    platform.client.install_box(tmp_path)
    refused = platform.wait_end(platform.submit("compile", box="mounted", parameters={"mode": "o0"})["id"], PATIENCE_S)
    assert (refused["state"], refused["box"]) == ("failed", "mounted:2")
    assert "Read-only file system" in refused["error"]["message"]


def test_an_image_that_is_no_box_is_refused(
    platform: PlatformUnderTest, layout: Path, podman_environment: dict[str, str]
) -> None:
    base = podman(podman_environment, "pull", "--quiet", f"oci:{layout}:rdukit-base")
    with pytest.raises(InvalidArgument, match="is not a ModelBox"):
        platform.client.install_image(base)
