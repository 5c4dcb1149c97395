"""Boxes as containers keep the contract of backends, on docker and on podman, and what only containers do."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rdukit.errors import Unavailable
from rdukit_platform.backends.contract import BoxBackend, BoxEventKind, BoxLimits, BoxOwner, BoxSpec, RunningBox
from rdukit_platform.backends.engines import DockerBackend, PodmanBackend
from support import shows, wait_until
from support.platform.backends import START_S, BackendContract, contract_box

pytestmark = [shows("images", "job-boxes", "logreg"), pytest.mark.timeout(900), pytest.mark.long]


@pytest.fixture(scope="class")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that user 10001 may enter: pytest's own are closed to others."""
    made = tmp_path_factory.mktemp("boxes")
    for path in (made, made.parent, made.parent.parent):
        path.chmod(0o755)
    return made


@pytest.fixture(scope="class")
def running(backend: BoxBackend, folder: Path) -> Iterator[RunningBox]:
    with contract_box(backend, folder) as box:
        yield box


@pytest.fixture(scope="module")
def docker_backend(engine_environment: dict[str, str], images: dict[str, str]) -> Iterator[DockerBackend]:
    backend = DockerBackend(images["modelbox"], engine_environment.get("DOCKER_HOST"))
    yield backend
    backend.close()


class TestDocker(BackendContract):
    @pytest.fixture(scope="class")
    @staticmethod
    def backend(docker_backend: DockerBackend) -> BoxBackend:
        return docker_backend


class TestPodman(BackendContract):
    @pytest.fixture(scope="class")
    @staticmethod
    def backend(podman_backend: PodmanBackend) -> BoxBackend:
        return podman_backend


class TestOneContainer:
    """What only containers do, looked at in docker's."""

    @pytest.fixture(scope="class")
    @staticmethod
    def backend(docker_backend: DockerBackend) -> BoxBackend:
        return docker_backend

    def test_a_box_has_no_rights_and_a_read_only_system(
        self, running: RunningBox, engine_environment: dict[str, str]
    ) -> None:
        program = (
            "import os; status = dict(l.split(':', 1) for l in open('/proc/self/status'));"
            "print(os.getuid(), int(status['CapEff'], 16), status['NoNewPrivs'].strip(), os.access('/etc', os.W_OK),"
            "os.access('/opt/rdukit', os.W_OK), len(os.sched_getaffinity(0)))"
        )
        command = ["docker", "exec", running.id, "python", "-c", program]
        told = subprocess.run(command, env=engine_environment, capture_output=True, text=True, check=True).stdout
        assert told.split() == ["10001", "0", "1", "False", "False", "1"]

    def test_a_verb_leaves_its_outputs_where_the_same_path_finds_them(self, running: RunningBox, folder: Path) -> None:
        asked = {"parameters": {"limit": 20}}
        made = httpx.post(f"{running.rest_url}/v1/preprocess", json=asked, timeout=60)
        assert made.status_code in {200, 202}, made.text
        operation = f"{running.rest_url}/v1/operations/{made.json()['id']}"
        wait_until(lambda: httpx.get(operation).json()["state"] in {"succeeded", "failed"}, 60)
        done = httpx.get(operation).json()
        assert done["state"] == "succeeded", done
        dataset = Path(done["outputs"]["dataset"])
        assert dataset.is_relative_to(folder / "one") and any(dataset.iterdir())

    def test_a_box_that_outgrows_its_memory_is_told_as_such(
        self, backend: BoxBackend, folder: Path, engine_environment: dict[str, str]
    ) -> None:
        box = backend.start(BoxSpec("logreg", folder / "small", limits=BoxLimits(memory_bytes=600 << 20)), START_S)
        # Make the engine's out-of-memory killer choose the server itself: it is what has grown.
        program = "import ctypes, os, sys; open('/proc/self/oom_score_adj', 'w').write('1000'); b = bytearray(1 << 30)"
        command = ["docker", "exec", box.id, "python", "-c", program]
        killed = subprocess.run(command, env=engine_environment, capture_output=True, check=False)
        assert killed.returncode == 137
        box.stop()
        assert box.events()[-1].kind is BoxEventKind.ENDED
        assert BoxEventKind.OUT_OF_MEMORY in {event.kind for event in box.events()}

    def test_a_core_that_is_not_there_is_refused_and_nothing_is_left(self, backend: BoxBackend, folder: Path) -> None:
        spec = BoxSpec("logreg", folder / "far", limits=BoxLimits(cores=(4000,)), owner=BoxOwner("far", 1))
        with pytest.raises(Unavailable, match=r"(?i)cpus"):
            backend.start(spec, START_S)
        assert not backend.orphans(BoxOwner("far", 2))

    def test_a_box_that_was_removed_behind_our_back_is_gone(
        self, backend: BoxBackend, folder: Path, engine_environment: dict[str, str]
    ) -> None:
        box = backend.start(BoxSpec("logreg", folder / "removed"), START_S)
        subprocess.run(["docker", "rm", "-fv", box.id], env=engine_environment, capture_output=True, check=True)
        assert not box.is_alive() and box.logs() == ""
        box.stop()
