"""One engine, one base image and one build of the images for all tests of a session.

An engine that answers is used; with ``RDUKIT_ENGINE_START=1`` one is started if it may be. Without an engine these
tests skip with the reason; ``RDUKIT_REQUIRE_ENGINE=1`` makes that a failure. Those that need the images have the mark
``images``: ``make engine`` runs them beside the others, on one engine (scripts/engine/lanes.py).
"""

import contextlib
import importlib.metadata
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from rdukit_platform.backends.engines import PodmanBackend

TREE = Path(__file__).parents[2]
BASE_IMAGE = "python:3.11-slim-bookworm"
WHEELS = TREE / "docker/wheels"
IMAGES = {"platform": "platform", "modelbox": "modelboxes", "snd": "runtime"}
#: Seconds that a build of the images may take.
IMAGES_S = 900
#: What must be free for gigabytes to be kept in memory.
MUCH_MEMORY_KIB = 10 << 20
PODMAN_CONFIG = """\
[containers]
default_ulimits = ["nofile=20000:20000","nproc=20000:20000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
[network]
network_backend = "netavark"
"""


def refuse(reason: str) -> NoReturn:
    """Skip, or fail where an engine is required."""
    if os.environ.get("RDUKIT_REQUIRE_ENGINE") == "1":
        pytest.fail(f"container engine: {reason}")
    pytest.skip(f"container engine: {reason}")


def answers(*command: str, environment: dict[str, str] | None = None) -> bool:
    """Whether a command succeeds."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


@pytest.fixture(scope="session")
def need() -> Callable[[str], str]:
    """Finds a program beside this Python or in the path; refuses where there is none."""

    def find(program: str) -> str:
        beside = Path(sys.executable).with_name(program)
        found = str(beside) if beside.is_file() else shutil.which(program)
        return found or refuse(f"{program} is not installed")

    return find


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "images: needs the images of this tree, built by docker")
    config.addinivalue_line("markers", "second_stack: a stack of its own beside the one that most tests share")


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the tests of this folder, those that need no image of ours come first: the images are built meanwhile."""
    places = [place for place, item in enumerate(items) if item.path.is_relative_to(Path(__file__).parent)]
    for place in places:
        if "images" in getattr(items[place], "fixturenames", ()):
            items[place].add_marker(pytest.mark.images)
    tests = sorted((items[place] for place in places), key=lambda item: "images" in getattr(item, "fixturenames", ()))
    for place, item in zip(places, tests, strict=True):
        items[place] = item


class Programs:
    """Programs that run beside the tests and end with them."""

    def __init__(self) -> None:
        #: Those that were started, each in a process group of its own; all but the running ones have been waited for.
        self._started: list[subprocess.Popen[str]] = []
        self.has_ended = False

    def run(self, *command: str, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end. Returns how it ended, and what it said."""
        process = subprocess.Popen(
            command, cwd=TREE, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, process_group=0,
        )  # fmt: skip
        self._started.append(process)
        if self.has_ended:
            os.killpg(process.pid, signal.SIGTERM)
        said, complaints = process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, said, complaints)

    def end(self) -> None:
        """Ask those that run to end, and any that is started later."""
        self.has_ended = True
        for process in self._started:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Begun:
    """The environment in which the engine answers, and the images, which are under way since before the first test."""

    environment: "Future[dict[str, str]]"
    images: "Future[dict[str, str]]"
    postgres: "Future[str]"


@pytest.fixture(scope="session", autouse=True)
def begun(request: pytest.FixtureRequest) -> Iterator[Begun]:
    """Starts the engine and the builds if any test needs them: the network is waited for while other tests run.

    Docker's engine comes before podman's first network and ends after its last: neither takes the other's rules away.
    """
    needed = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    environment: Future[dict[str, str]] = Future()
    images: Future[dict[str, str]] = Future()
    postgres: Future[str] = Future()
    folder = pool = None
    programs = Programs()
    wheels = set(WHEELS.glob("*.whl"))
    if "engine_environment" in needed:
        try:
            found, folder = start_engine()
        except (pytest.skip.Exception, pytest.fail.Exception) as reason:
            environment.set_exception(reason)
            images.set_exception(reason)
            postgres.set_exception(reason)
        else:
            environment.set_result(found)
            if "images" in needed:
                bring = await_images if os.environ.get("RDUKIT_ENGINE_BUILDS") == "elsewhere" else build_images
                pool = ThreadPoolExecutor(1, "builds")
                images = pool.submit(bring, programs, found)
            if pool is not None and "postgres_image" in needed:  # after the images: it may take their base
                postgres = pool.submit(bring_postgres, programs, found)
    try:
        yield Begun(environment, images, postgres)
    finally:
        programs.end()
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        if folder is not None:
            subprocess.run([TREE / "scripts/engine/down", folder], check=False)
            shutil.rmtree(folder, ignore_errors=True)
        for wheel in set(WHEELS.glob("*.whl")) - wheels:
            wheel.unlink()


def start_engine() -> tuple[dict[str, str], str | None]:
    """The environment in which ``docker`` answers, and the folder of an engine that was started for it."""
    if shutil.which("docker") is None:
        refuse("there is no docker command")
    environment = dict(os.environ)
    if answers("docker", "version", environment=environment):
        return environment, None
    if os.environ.get("RDUKIT_ENGINE_START") != "1":
        refuse("none answers; make engine starts one")
    folder = tempfile.mkdtemp(prefix="rdkeng", dir="/tmp")
    started = subprocess.run([TREE / "scripts/engine/up", folder], capture_output=True, text=True, check=False)
    if started.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        refuse(started.stderr.strip().splitlines()[-1])
    environment["DOCKER_HOST"] = started.stdout.strip()
    return environment, folder


@pytest.fixture(scope="session")
def engine_environment(begun: Begun) -> dict[str, str]:
    """The environment in which ``docker`` answers."""
    return begun.environment.result()


def bring_torch(programs: Programs, environment: dict[str, str]) -> None:
    """Put the wheel of torch where the builds look for it: the CPU build if that is what is installed here."""
    if not list(WHEELS.glob("torch-*.whl")):
        wanted = f"torch=={importlib.metadata.version('torch')}"
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(WHEELS), wanted]
        programs.run(*command, environment=environment)


def bring_base(programs: Programs, environment: dict[str, str]) -> None:
    """See that the base image is there."""
    if answers("docker", "image", "inspect", BASE_IMAGE, environment=environment):
        return
    if programs.run("docker", "pull", "--quiet", BASE_IMAGE, environment=environment).returncode != 0:
        made = programs.run(str(TREE / "scripts/engine/make-base"), BASE_IMAGE, environment=environment)
        if made.returncode != 0:
            refuse(f"no base image: {(made.stderr.strip() or 'interrupted').splitlines()[-1]}")


def find_builder(environment: dict[str, str]) -> tuple[str, str]:
    """A docker client and the value of ``DOCKER_BUILDKIT`` for it: BuildKit, which is faster, where a client can."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Dockerfile").write_text("FROM scratch\nLABEL a=b\n")
        for client in ("docker", "/usr/bin/docker"):
            if answers(client, "build", "--quiet", folder, environment={**environment, "DOCKER_BUILDKIT": "1"}):
                return client, "1"
    return "docker", "0"


@pytest.fixture(scope="session")
def images(begun: Begun) -> dict[str, str]:
    """The images by part, built from this tree; with ``RDUKIT_ENGINE_REUSE=1`` those that are there."""
    return begun.images.result()


@pytest.fixture(scope="session")
def postgres_image(begun: Begun) -> str:
    """An image of PostgreSQL: the official one where it can be pulled, else a stand-in with Debian's server."""
    return begun.postgres.result()


def bring_postgres(programs: Programs, environment: dict[str, str]) -> str:
    """The image of PostgreSQL that ``docker-compose.yml`` names, or a stand-in."""
    named, own = "postgres:16", "rdukit/postgres:test"
    for image in (named, own):
        if answers("docker", "image", "inspect", image, environment=environment):
            return image
    if programs.run("docker", "pull", "--quiet", named, environment=environment).returncode == 0:
        return named
    made = programs.run(str(TREE / "scripts/engine/make-postgres"), own, BASE_IMAGE, environment=environment)
    if made.returncode != 0:
        refuse(f"no image of PostgreSQL: {(made.stderr.strip() or 'interrupted').splitlines()[-1]}")
    return own


def await_images(programs: Programs, environment: dict[str, str]) -> dict[str, str]:
    """What ``images`` gives, from another process that builds on the same engine."""
    tags = {part: f"rdukit/{part}:test" for part in IMAGES}
    deadline = time.monotonic() + IMAGES_S
    while not answers("docker", "image", "inspect", *tags.values(), environment=environment):
        if programs.has_ended or time.monotonic() > deadline:
            refuse(f"the images were not built within {IMAGES_S} s")
        time.sleep(1)
    return tags


def build_images(programs: Programs, environment: dict[str, str]) -> dict[str, str]:
    """Build what ``images`` gives."""
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(bring, programs, environment) for bring in (bring_base, bring_torch)]:
            done.result()
    client, kit = find_builder(environment)

    def build(part: str) -> str:
        tag = f"rdukit/{part}:test"
        is_kept = os.environ.get("RDUKIT_ENGINE_REUSE") == "1"
        if is_kept and answers("docker", "image", "inspect", tag, environment=environment):
            return tag
        command = [client, "build", "--quiet", "--file", f"{IMAGES[part]}/Dockerfile", "--tag", tag, "."]
        done = programs.run(*command, environment={**environment, "DOCKER_BUILDKIT": kit})
        assert done.returncode == 0, done.stderr[-3000:]
        return tag

    # Much of the time is the network's; BuildKit sends each file once for all three, and takes equal steps once.
    with ThreadPoolExecutor(len(IMAGES) if kit == "1" else 1) as pool:
        return dict(zip(IMAGES, pool.map(build, IMAGES), strict=True))


@pytest.fixture(scope="session")
def layout() -> Iterator[Path]:
    """A layout with the boxes logreg and ffn on a base made of what is installed."""
    from rdukit_modelbox.image.build import build_layout

    with memory_folder("rdkoci") as folder:
        build_layout("logreg", folder / "layout")
        build_layout("ffn", folder / "layout", base=f"oci:{folder / 'layout'}:rdukit-base")
        yield folder / "layout"


@contextlib.contextmanager
def memory_folder(prefix: str) -> Iterator[Path]:
    """A folder directly in /tmp, in memory if there is plenty: it takes gigabytes, which a disk would be waited for."""
    # Podman takes a path for a reference, in which mkdtemp's underscores may not be at an end.
    folder = Path(f"/tmp/{prefix}{secrets.token_hex(6)}")
    folder.mkdir(mode=0o700)
    try:
        free_kib = int(re.findall(r"MemAvailable: *(\d+)", Path("/proc/meminfo").read_text())[0])
        if free_kib > MUCH_MEMORY_KIB:
            answers("mount", "-t", "tmpfs", "-o", "mode=0700,size=4g", "rdukit-engine", str(folder))
        yield folder
    finally:
        if folder.is_mount():
            answers("umount", str(folder)) or answers("umount", "--lazy", str(folder))
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def podman_environment() -> Iterator[dict[str, str]]:
    """The environment in which ``podman`` works on storage of its own, with its service at ``RDUKIT_PODMAN_URL``."""
    if shutil.which("podman") is None:
        refuse("there is no podman command")
    with memory_folder("rdkpod") as folder, podman_in(folder) as environment:
        yield environment


@contextlib.contextmanager
def podman_in(folder: Path) -> Iterator[dict[str, str]]:
    """Podman with its storage and its service in ``folder``; gives the environment."""
    # Networks would otherwise be the machine's, and remain if this process is killed.
    (folder / "containers.conf").write_text(f'{PODMAN_CONFIG}network_config_dir = "{folder}/networks"\n')
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n'
    )
    (folder / "xdg").mkdir(mode=0o700)
    environment = {
        **os.environ, "CONTAINERS_CONF": str(folder / "containers.conf"), "XDG_RUNTIME_DIR": str(folder / "xdg"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }  # fmt: skip
    environment.pop("CONTAINER_HOST", None)
    rules = netavark_rules()
    if not answers("podman", "info", environment=environment):
        refuse("podman does not work here")
    socket = folder / "podman.sock"
    with (folder / "log").open("wb") as log:
        service = subprocess.Popen(
            ["podman", "system", "service", "--time=0", f"unix://{socket}"],
            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not socket.exists():
            if time.monotonic() > deadline or service.poll() is not None:
                refuse(f"podman's service does not start: {(folder / 'log').read_text()[-300:]}")
            time.sleep(0.05)
        yield {**environment, "RDUKIT_PODMAN_URL": f"unix://{socket}"}
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(10)
        # What a failed test left running; a reset would wait for each to stop by itself.
        answers("podman", "rm", "--all", "--force", "--time", "0", environment=environment)
        answers("podman", "system", "reset", "--force", environment=environment)
        forget_rules(netavark_rules() - rules)
        subprocess.run(["umount", "--quiet", str(folder / "root/overlay")], check=False, capture_output=True)


def netavark_rules() -> set[tuple[str, str]]:
    """Table and text of what podman's networks have in the tables of addresses; nothing where they may not be read."""
    found = set[tuple[str, str]]()
    for table in ("filter", "nat"):
        try:
            done = subprocess.run(["iptables-save", "--table", table], capture_output=True, text=True, check=False)
        except OSError:
            continue
        found |= {(table, line) for line in done.stdout.splitlines() if "NETAVARK" in line}
    return found


def forget_rules(rules: set[tuple[str, str]]) -> None:
    """Delete what netavark leaves behind: rules, then the chains that are empty by then; one in use stays."""
    for table, line in sorted(rules, key=lambda rule: rule[1]):  # "-A …" before ":CHAIN …"
        command = ["iptables", "--wait", "--table", table]
        if line.startswith("-A "):
            answers(*command, "--delete", *shlex.split(line)[1:])
        elif line.startswith(":"):
            answers(*command, "--delete-chain", line[1:].split()[0])


@pytest.fixture(scope="session")
def podman_image(podman_environment: dict[str, str], layout: Path) -> str:
    """The image of the box logreg that was written without any engine, in podman's storage."""
    command = ["podman", "pull", "--quiet", f"oci:{layout}:logreg"]
    pulled = subprocess.run(command, env=podman_environment, capture_output=True, text=True, timeout=300, check=False)
    assert pulled.returncode == 0, pulled.stderr
    return pulled.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="session")
def podman_backend(podman_environment: dict[str, str], podman_image: str) -> Iterator[PodmanBackend]:
    """Starts boxes by podman, and sees those that others started."""
    with contextlib.closing(PodmanBackend(podman_image, podman_environment["RDUKIT_PODMAN_URL"])) as backend:
        yield backend
