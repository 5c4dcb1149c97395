"""Hostile boxes that a tenant installed, as containers of the real platform: what they reach for is not there."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from rdukit_platform.backends.container_options import LOG_BYTES
from support import shows, wait_until
from support.platform.hostile import ENVIRONMENT, PATIENCE_S, Hostile, HostileBoxes
from support.platform.processes import PlatformUnderTest, platform_under_test, short_folder

pytestmark = [shows("job-boxes", "security"), pytest.mark.timeout(900), pytest.mark.long]

BOX = Path(__file__).parents[1] / "integration" / "platform_box.py"


class HostileContainers(HostileBoxes):
    VARIABLES = HostileBoxes.VARIABLES | {
        "HOSTNAME", "USER", "PYTHONDONTWRITEBYTECODE", "PIP_CERT", "SSL_CERT_FILE", "TERM", "container",
    }  # fmt: skip

    def test_a_box_that_talks_for_ever_fills_no_disk(
        self, platform: PlatformUnderTest, hostile: Hostile, engine: tuple[str, Mapping[str, str]]
    ) -> None:
        job = hostile.submit("""
for _ in range(1000): os.write(1, (b"x" * 999 + b"\\n") * 100)
(output / "said").touch()
while not (output / "heard").exists(): time.sleep(0.1)
""")
        output = platform.home / "work" / job / "out/dataset"
        wait_until((output / "said").exists, PATIENCE_S)
        program, environment = engine
        box = hostile.client.get(f"/v1/jobs/{job}")["attempts"][-1]["box"]["id"]
        kept = subprocess.run([program, "logs", box], env=environment, capture_output=True, check=True)
        (output / "heard").touch()
        assert hostile.wait_end(job)["state"] == "succeeded"
        assert 0 < len(kept.stdout) <= LOG_BYTES


class TestPodman(HostileContainers):
    @pytest.fixture(scope="class")
    @staticmethod
    def engine(podman_environment: dict[str, str]) -> tuple[str, Mapping[str, str]]:
        return "podman", podman_environment

    @pytest.fixture(scope="class")
    @staticmethod
    def platform(podman_environment: dict[str, str], podman_image: str) -> Iterator[PlatformUnderTest]:
        url = podman_environment["RDUKIT_PODMAN_URL"]
        settings = {"RDUKIT_WORKER_BOX_BACKEND": "podman", "CONTAINER_HOST": url}
        with hostile_platform("podman", podman_environment, podman_image, settings) as running:
            yield running


class TestDocker(HostileContainers):
    @pytest.fixture(scope="class")
    @staticmethod
    def engine(engine_environment: dict[str, str]) -> tuple[str, Mapping[str, str]]:
        return "docker", engine_environment

    @pytest.fixture(scope="class")
    @staticmethod
    def platform(engine_environment: dict[str, str], images: dict[str, str]) -> Iterator[PlatformUnderTest]:
        settings = {"RDUKIT_WORKER_BOX_BACKEND": "docker"}
        settings |= {name: engine_environment[name] for name in {"DOCKER_HOST"} & set(engine_environment)}
        with hostile_platform("docker", engine_environment, images["modelbox"], settings) as running:
            yield running


@contextmanager
def hostile_platform(
    engine: str, environment: Mapping[str, str], image: str, settings: Mapping[str, str]
) -> Iterator[PlatformUnderTest]:
    """A platform whose boxes are containers of ``image``, in which the test's box is the program ``rdukit``."""

    def run(*words: str) -> str:
        return subprocess.run([engine, *words], env=environment, capture_output=True, text=True, check=True).stdout

    look = ["run", "--rm", "--entrypoint", "python", image, "-c"]
    place, python = run(*look, "import shutil, sys; print(shutil.which('rdukit'), sys.executable)").split()
    made = run("create", image).strip()
    with short_folder() as folder:
        program = folder / "rdukit"
        program.write_text(f"#!{python}\n{BOX.read_text()}")
        program.chmod(0o755)
        run("cp", str(program), f"{made}:{place}")
    run("commit", made, "rdukit/hostile:test")
    run("rm", "--force", made)
    image = run("image", "inspect", "--format", "{{.Id}}", "rdukit/hostile:test").strip()
    try:
        # Of root's boxes the user is another one.
        settings = {**ENVIRONMENT, **settings, "RDUKIT_WORKER_BOX_IMAGE": image, "RDUKIT_SND_SOCKET_MODE": "666"}
        settings |= {"RDUKIT_WORKER_BOX_DISK": str(64 << 20)}
        with short_folder() as home, platform_under_test(home, BOX, settings, is_cold=True) as running:
            yield running
    finally:
        run("rmi", "--force", image)
