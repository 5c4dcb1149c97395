"""Profiles of jobs: what a real box records of its verb, how a job asks for it, and how the console serves the page."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import pytest

from rdukit.box.client import BoxClient
from rdukit.errors import IllegalValue, InvalidArgument, NotFound
from rdukit.proto import jobs_pb2 as jobs_pb
from rdukit.proto import modelbox_pb2 as pb
from rdukit.proto import modelbox_pb2_grpc
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBox
from rdukit_platform.client.http import ApiClient
from rdukit_platform.client.jobs import Jobs
from rdukit_platform.gateway.rpc_messages import request_from
from rdukit_platform.settings import Home
from support import shows
from support.platform.processes import PlatformUnderTest, platform_under_test, run_rdukit, short_folder
from support.platform.warm import start_box

pytestmark = shows("profile", "jobs", "console")

COUNTER = Path(__file__).parent / "platform_box.py"
FILES = {"report.html", "trace.json", "speedscope.json", "summary.json"}
#: Native kernels are other tests'.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "RDUKIT_KERNELS": "portable"}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessBox]:
    state = tmp_path_factory.mktemp("box")
    box = start_box(BoxSpec("logreg", state / "logreg", mounts=[state], environment=ENVIRONMENT))
    yield box
    box.stop()


@pytest.fixture(scope="module")
def client(box: ProcessBox) -> Iterator[BoxClient]:
    with BoxClient(box.rest_url) as client:
        yield client


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, COUNTER) as running:
        yield running


@pytest.fixture(scope="module")
def dataset(platform: PlatformUnderTest) -> str:
    made: str = platform.wait_end(platform.submit("preprocess")["id"])["outputs"]["dataset"]
    return made


@pytest.fixture(scope="module")
def profiled(platform: PlatformUnderTest, dataset: str) -> str:
    """Job that was submitted with a profile, and has one."""
    job: str = platform.submit("train", inputs={"dataset": dataset}, profile=True)["id"]
    done = platform.wait_end(job)
    assert (done["state"], done["profile"]) == ("succeeded", True), done
    assert set(done["outputs"]) == {"checkpoint", "profile"}
    return job


@pytest.mark.long
def test_a_box_records_a_training_when_it_is_asked_to(client: BoxClient) -> None:
    inputs = {}
    for verb, slot, parameters in (("preprocess", "dataset", {}), ("compile", "pef", {"batch_size": 50})):
        inputs[slot] = client.wait(client.submit(verb, parameters)["id"])["outputs"][slot]
    done = client.wait(client.submit("train", {"epochs": 1}, inputs, profile=True)["id"])
    assert done["state"] == "succeeded", done
    folder = Path(done["outputs"]["profile"])
    assert {each.name for each in folder.iterdir()} == FILES
    summary = json.loads((folder / "summary.json").read_text())
    (process,) = summary["processes"]
    trained = {s["name"]: s["runs"] for s in process["sections"] if s["type"] in {"fwd", "bckwd", "opt"}}
    assert min(trained.values()) >= done["result"]["steps"] == 160
    assert sum(row["ns"] for row in process["account"]) == process["wall_ns"]
    page = (folder / "report.html").read_text()
    assert "rdukit job submit logreg train --profile" in page
    assert "training" in json.dumps(json.loads((folder / "trace.json").read_text()))
    inputs["checkpoint"] = done["outputs"]["checkpoint"]
    plain = client.wait(client.submit("evaluate", {}, inputs)["id"])
    assert list(plain["outputs"]) == ["report"]


def test_a_box_refuses_a_profile_of_verbs_without_sessions_on_both_wires(box: ProcessBox, client: BoxClient) -> None:
    with pytest.raises(InvalidArgument, match="compile runs no session; expected one of evaluate, infer, train"):
        client.submit("compile", profile=True)
    with grpc.insecure_channel(box.grpc_address) as channel, pytest.raises(grpc.RpcError) as refused:
        modelbox_pb2_grpc.ModelBoxStub(channel).Compile(pb.VerbRequest(profile=True), timeout=60)
    assert "compile runs no session" in str(refused.value)


def test_a_job_asks_for_a_profile_and_its_clone_may_change_that(
    platform: PlatformUnderTest, dataset: str, profiled: str
) -> None:
    with pytest.raises(IllegalValue, match="preprocess runs no session; expected one of evaluate, infer, train"):
        platform.submit("preprocess", profile=True)
    plain = platform.submit("train", inputs={"dataset": dataset})["id"]
    assert set(platform.wait_end(plain)["outputs"]) == {"checkpoint"}
    jobs = Jobs(platform.client)
    assert jobs.get(profiled).clone(profile=False).wait().info.outputs.keys() == {"checkpoint"}
    assert jobs.get(plain).clone(profile=True).wait().info.outputs.keys() == {"checkpoint", "profile"}
    message = jobs_pb.SubmitRequest(box="counter", verb="train", profile=True)
    assert request_from(message).profile


def test_the_command_line_submits_and_fetches_a_profile(
    platform: PlatformUnderTest, dataset: str, profiled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(platform.home))
    made = run_rdukit("job", "submit", "counter", "train", "--input", f"dataset={dataset}", "--profile", "--wait")
    assert platform.job(made.strip())["profile"]
    run_rdukit("job", "profile", profiled, "-o", str(tmp_path / "made"))
    assert (tmp_path / "made" / "report.html").read_text().startswith("<script>")
    plain = platform.submit("train", inputs={"dataset": dataset})["id"]
    assert f"rdukit job clone {plain} --profile" in run_rdukit("job", "profile", plain, status=NotFound.exit_status)


def test_the_console_runs_again_with_a_profile_and_shows_it_in_a_sandbox(
    platform: PlatformUnderTest, dataset: str, profiled: str
) -> None:
    plain = platform.submit("train", inputs={"dataset": dataset})["id"]
    platform.wait_end(plain)
    with console_of(platform.client, Home(platform.home).token_file.read_text().strip()) as console:
        assert f'href="/console/jobs/{profiled}/profile"' in console.get(f"/console/jobs/{profiled}").text
        shown = console.get(f"/console/jobs/{profiled}/profile")
        assert shown.text == "<script>document.title = document.cookie</script>"
        policy = shown.headers["content-security-policy"].split("; ")
        assert {"sandbox allow-scripts", "default-src 'none'", "frame-ancestors 'none'"} <= set(policy)
        assert "allow-same-origin" not in shown.headers["content-security-policy"]
        assert console.get(f"/console/jobs/{plain}/profile").status_code == 404
        again = console.post(f"/console/jobs/{plain}/profile")
        assert str(again.url) != str(shown.url)
        assert platform.job(again.url.path.rpartition("/")[2])["profile"]
        form = console.get("/console/catalog/counter/run/train", params={"job": profiled}).text
        assert 'name="profile" value="true" checked' in form
        assert "--profile" in form
        assert 'name="profile"' not in console.get("/console/catalog/counter/run/preprocess").text


def test_a_profile_is_its_tenants_own(platform: PlatformUnderTest, profiled: str) -> None:
    other = platform.client.post("/v1/tenants", {"name": "other"})["id"]
    made = platform.client.post(f"/v1/tenants/{other}/tokens", {"scopes": ["read", "jobs:write"]})
    with console_of(platform.client, made["token"]) as console:
        assert console.get(f"/console/jobs/{profiled}/profile").status_code == 404
        assert console.post(f"/console/jobs/{profiled}/profile").status_code == 404


@contextmanager
def console_of(client: ApiClient, token: str) -> Iterator[httpx.Client]:
    """Yield a browser of the console, logged in with a token."""
    with httpx.Client(base_url=client.url, follow_redirects=True, timeout=60.0) as console:
        assert console.post("/console/login", data={"token": token}).status_code == 200
        yield console
