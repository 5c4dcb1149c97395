"""The stack with ``docker-compose.boxes.yml``: jobs of several tenants, each in a container of its own."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from compose_stack import PATIENCE_S, Engine, connect, find_compose, follow, is_over, is_under_way

from support import shows

#: Where the file has the home folder, for the engine and for the services.
HOME = Path("/var/lib/rdukit")
USER = 10001

pytestmark = [
    shows("containers", "job-boxes", "logreg"),
    pytest.mark.timeout(1200),
    pytest.mark.second_stack,
    pytest.mark.long,
]


@pytest.fixture(scope="module")
def stack(engine_environment: dict[str, str], images: dict[str, str]) -> Iterator[Engine]:
    socket = Path(engine_environment.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://"))
    if os.getuid() != 0 or not socket.is_socket():
        pytest.skip(f"container engine: only root here makes {HOME}, and {socket} is to be a socket")
    if HOME.exists():
        pytest.skip(f"container engine: {HOME} is somebody's")
    found = find_compose(engine_environment, "rdukit-boxes", shift=20)
    files = ["--file", "docker-compose.yml", "--file", "docker-compose.boxes.yml"]
    found = replace(found, compose=[*found.compose, *files])
    found.environment.update(RDUKIT_ENGINE_SOCKET=str(socket), RDUKIT_ENGINE_GROUP=str(socket.stat().st_gid))
    HOME.mkdir(mode=0o700)
    try:
        os.chown(HOME, USER, USER)
        found.up("up", "--detach", "--wait", "--no-build", "--wait-timeout", str(PATIENCE_S), timeout_s=PATIENCE_S + 60)
        yield found
    finally:
        found.up("down", "--volumes", "--timeout", "10")
        shutil.rmtree(HOME)


@pytest.fixture(scope="module")
def gateway(stack: Engine) -> Iterator[httpx.Client]:
    with connect(stack) as client:
        yield client


def test_jobs_of_two_tenants_run_in_containers_of_their_own(stack: Engine, gateway: httpx.Client) -> None:
    made = gateway.post("/v1/tenants", json={"name": "second"}).raise_for_status().json()
    token = gateway.post(f"/v1/tenants/{made['id']}/tokens", json={"scopes": ["read", "write"]}).json()["token"]
    authorization = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=gateway.base_url, headers=authorization, timeout=60) as second:
        for client in (gateway, second):
            job = client.post("/v1/jobs", json={"box": "logreg", "verb": "preprocess"}).raise_for_status().json()["id"]
            done = follow(client, job, is_over)
            assert done["state"] == "succeeded", done["error"]
            assert done["attempts"][0]["box"]["backend"] == "docker"
            assert set(done["attempts"][0]["box"]["limits"]) == {"memory", "pids", "disk"}


def test_a_jobs_container_has_no_network_and_the_limits_and_trains_on_its_tiles(
    stack: Engine, gateway: httpx.Client
) -> None:
    steps = [
        {"name": "data", "box": "logreg", "verb": "preprocess"},
        {"name": "pef", "box": "logreg", "verb": "compile"},
        {
            "name": "train", "box": "logreg", "verb": "train", "tiles": 4, "parameters": {"epochs": 50},
            "inputs": {"dataset": "@data.dataset", "pef": "@pef.pef"},
        },
    ]  # fmt: skip
    made = gateway.post("/v1/pipelines", json={"name": "digits", "steps": steps}).raise_for_status().json()
    job = made["jobs"][2]["id"]
    running = follow(gateway, job, is_under_way)
    assert running["state"] == "running", running["error"]
    (shown,) = json.loads(stack.run("docker", "inspect", running["attempts"][0]["box"]["id"]))
    host: dict[str, Any] = shown["HostConfig"]
    assert (host["NetworkMode"], host["CapDrop"], host["ReadonlyRootfs"]) == ("none", ["ALL"], True)
    assert shown["Config"]["User"] == f"{USER}:{USER}" and host["PidsLimit"] == 1024 and host["Memory"] == 4 << 30
    assert any(option.startswith("seccomp={") for option in host["SecurityOpt"])
    folders = [mount["Destination"] for mount in shown["Mounts"] if mount["Type"] == "bind"]
    assert all(Path(folder).is_relative_to(HOME / "work" / job) or "/run/leases/" in folder for folder in folders)
    assert not [mount for mount in shown["Mounts"] if mount["Type"] == "volume"], "nobody would count what is in it"
    done = follow(gateway, job, is_over)
    assert done["state"] == "succeeded", done["error"]
