"""A tenant's own boxes on a whole platform: installed, run in versions, seen by nobody else, uninstalled."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from rdukit.errors import Conflict, IllegalValue, InvalidArgument, NotFound, PermissionDenied, Unavailable
from rdukit_modelbox.cli.main import box as box_commands
from rdukit_modelbox.contract.new_box import new_box_files
from rdukit_platform.artifacts.stores.folder import FolderStore
from rdukit_platform.cli.job import job as job_commands
from rdukit_platform.client.http import ApiClient
from support import shows, wait_until
from support.platform.processes import PlatformUnderTest, has_ended, platform_under_test, short_folder

pytestmark = shows("box", "job", "catalog", "console", "modelbox-own-model")

PNG = b"\x89PNG\r\n\x1a\n and what a decoder makes of"
BOX = Path(__file__).parent / "platform_box.py"
ENVIRONMENT = {
    "RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_CATALOG_INSTALL_TENANTS": "default, third", "RDUKIT_KERNELS": "portable",
}  # fmt: skip


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, BOX, ENVIRONMENT) as running:
        yield running


def tenant(platform: PlatformUnderTest, name: str) -> ApiClient:
    """A client of another tenant."""
    made = platform.client.post("/v1/tenants", {"name": name})
    token = platform.client.post(f"/v1/tenants/{made['id']}/tokens", {"scopes": ["read", "write"]})["token"]
    return ApiClient(platform.running["url"], token)


@pytest.fixture(scope="module")
def other(platform: PlatformUnderTest) -> Iterator[ApiClient]:
    with tenant(platform, "other") as client:
        yield client


def write(folder: Path, **content: object) -> Path:
    """A box's folder, with these keys in its file."""
    folder.mkdir(exist_ok=True)
    (folder / "modelbox.yaml").write_text(json.dumps({"name": folder.name, **content}))
    return folder


def says(platform: PlatformUnderTest, box: str) -> tuple[str, object]:
    """The box that a job ran, and what that one says."""
    done = platform.wait_end(platform.submit("preprocess", box=box)["id"])
    assert done["state"] == "succeeded", done
    return done["box"], done["result"]["says"]


@pytest.mark.long
def test_every_version_runs_as_it_was_installed(platform: PlatformUnderTest, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    first = platform.client.install_box(write(folder, says="one"))
    assert (first["box"], first["is_new"]) == ("mine:1", True)
    again = platform.client.install_box(folder)
    assert (again["box"], again["is_new"]) == ("mine:1", False)
    assert platform.client.install_box(write(folder, says="two"))["box"] == "mine:2"
    assert [says(platform, box) for box in ("mine", "mine:1", "mine@2")] == [
        ("mine:2", "two"), ("mine:1", "one"), ("mine:2", "two"),
    ]  # fmt: skip
    shown = platform.client.get(f"/v1/artifacts/{first['artifact']}")
    assert (shown["name"], shown["kind"], shown["digest"]) == ("mine:1", "box", first["digest"])
    steps = [
        {"name": "prepare", "box": "mine:1", "verb": "preprocess"},
        {"name": "learn", "box": "mine", "verb": "train", "inputs": {"dataset": "@prepare.dataset"}},
    ]
    jobs = platform.client.submit("/v1/pipelines", {"name": "p", "steps": steps})["jobs"]
    assert [platform.wait_end(job["id"])["state"] for job in jobs] == ["succeeded", "succeeded"]
    with pytest.raises(IllegalValue, match="1 <= x <= 1000"):
        platform.submit("train", box="mine", parameters={"steps": 0})


def test_the_catalog_and_the_console_show_a_tenants_own_boxes(platform: PlatformUnderTest, tmp_path: Path) -> None:
    folder = tmp_path / "shown"
    for word in ("one", "two"):
        platform.client.install_box(write(folder, title=f"Says {word}"))
    boxes = {box["name"]: box for box in platform.client.get("/v1/catalog")["boxes"]}
    assert "installed" not in boxes["counter"]
    assert (boxes["shown"]["title"], boxes["shown"]["installed"]["versions"]) == ("Says two", [1, 2])
    assert platform.client.get("/v1/catalog/shown:1")["title"] == "Says one"
    url, token = platform.running["url"], (platform.home / "token").read_text().strip()
    with httpx.Client(base_url=url, trust_env=False, follow_redirects=True) as browser:
        browser.post("/console/login", data={"token": token, "next": "/console/catalog"})
        listed = browser.get("/console/catalog").text
        assert '<span class="tag">your own</span>' in listed and 'href="/console/catalog/shown:2"' in listed
        page = browser.get("/console/catalog/shown:1").text
        assert "your own, version 1" in page and "job submit shown:1 preprocess" in page
        assert 'href="/console/catalog/shown:2"' in page


def test_a_box_has_a_picture_that_its_own_tenant_sees_and_that_runs_nothing(
    platform: PlatformUnderTest, other: ApiClient, tmp_path: Path
) -> None:
    folder = write(tmp_path / "drawn")
    (folder / "picture.png").write_bytes(b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>")
    with pytest.raises(InvalidArgument, match="is not a PNG"):
        platform.client.install_box(folder)
    (folder / "picture.png").write_bytes(PNG + bytes(1 << 18))
    with pytest.raises(InvalidArgument, match="expected up to 256"):
        platform.client.install_box(folder)
    (folder / "picture.png").write_bytes(PNG)
    assert platform.client.install_box(folder)["box"] == "drawn:1"
    (folder / "picture.png").unlink()
    platform.client.install_box(folder)
    url, token = platform.running["url"], (platform.home / "token").read_text().strip()
    with httpx.Client(base_url=url, trust_env=False) as browser:
        assert browser.get("/console/catalog/drawn:1/picture").status_code == 303
        assert browser.get("/v1/catalog/drawn:1/picture").status_code == 401
        browser.post("/console/login", data={"token": token})
        for path, headers in (("/console", {}), ("/v1", {"Authorization": f"Bearer {token}"})):
            answer = browser.get(f"{path}/catalog/drawn:1/picture", headers=headers)
            assert (answer.content, answer.headers["content-type"]) == (PNG, "image/png")
            assert "sandbox" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            for box in ("drawn", "drawn:2", "drawn:3", "counter"):
                assert browser.get(f"{path}/catalog/{box}/picture", headers=headers).status_code == 404
        assert 'src="/console/catalog/drawn:1/picture"' in browser.get("/console/catalog/drawn:1").text
        assert "/picture" not in browser.get("/console/catalog/drawn:2").text
    for box in ("drawn", "drawn:1"):
        with pytest.raises(NotFound):
            other.get(f"/v1/catalog/{box}/picture")


def test_another_tenant_gets_no_hint_and_is_told_what_lets_it_install(
    platform: PlatformUnderTest, other: ApiClient, tmp_path: Path
) -> None:
    platform.client.install_box(write(tmp_path / "secret"))
    assert other.get("/v1/boxes")["boxes"] == []
    assert [box["name"] for box in other.get("/v1/catalog")["boxes"]] == ["counter"]
    for path in ("/v1/catalog/secret", "/v1/catalog/secret:1"):
        with pytest.raises(NotFound) as unknown:
            other.get(path)
        assert unknown.value.detail == {"legal": ["counter"]}
    with pytest.raises(NotFound):
        other.submit("/v1/jobs", {"box": "secret:1", "verb": "preprocess"})
    with pytest.raises(NotFound):
        other.delete("/v1/boxes/secret:1")
    with pytest.raises(PermissionDenied, match=r"'other' may not run its own boxes.*catalog.install_tenants"):
        other.install_box(write(tmp_path / "secret"))
    with tenant(platform, "third") as third:
        assert third.install_box(write(tmp_path / "secret", says="third"))["box"] == "secret:1"


def test_what_a_running_job_takes_is_not_uninstalled(platform: PlatformUnderTest, tmp_path: Path) -> None:
    folder = tmp_path / "used"
    for word in ("one", "two"):
        platform.client.install_box(write(folder, says=word))
    dataset = platform.wait_end(platform.submit("preprocess", box="used:1")["id"])["outputs"]["dataset"]
    slow = {"steps": 1000, "step_s": 0.1}
    job = platform.submit("train", box="used:1", inputs={"dataset": dataset}, parameters=slow)["id"]
    platform.wait_job(job, lambda found: found["state"] == "running")
    for box in ("used:1", "used"):
        with pytest.raises(Conflict, match=f"1 job of box {box} has not ended: {job}"):
            platform.client.delete(f"/v1/boxes/{box}")
    assert platform.client.delete("/v1/boxes/used:2") == {"boxes": ["used:2"]}
    platform.client.post(f"/v1/jobs/{job}/cancel")
    assert platform.client.delete("/v1/boxes/used@1") == {"boxes": ["used:1"]}
    with pytest.raises(NotFound, match="unknown ModelBox 'used'"):
        platform.submit("preprocess", box="used")
    assert platform.client.install_box(folder)["box"] == "used:3"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"modelbox.yaml": b"{"}, r"^modelbox.yaml:1:1: "),
        ({"model.py": b""}, "a folder with a modelbox.yaml, but this one has: model.py"),
        ({"modelbox.yaml": b"{}", "../model.py": b""}, "leaves its folder"),
        ({"modelbox.yaml": b"{}", "a": b"", "a/b": b""}, "is a file of the folder"),
        ({"modelbox.yaml": b"{}", "d" * 201: b""}, "has 201 characters; expected paths of up to 200"),
        ({"modelbox.yaml": b"{}", "big.bin": b"0" * (4 << 20)}, r"largest is big.bin .*rdukit artifact add"),
        ({"modelbox.yaml": b"{}"} | {f"{n}": b"" for n in range(500)}, "501 files"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_a_box_leaves_nothing(
    platform: PlatformUnderTest, files: dict[str, bytes], words: str
) -> None:
    before = sorted((platform.home / "artifacts").rglob("*"))
    url, token = platform.running["url"], (platform.home / "token").read_text().strip()
    parts: Any = [("files", (name, data)) for name, data in files.items()]
    answer = httpx.post(
        f"{url}/v1/boxes", files=parts, headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=60
    )
    assert answer.status_code == 400
    with pytest.raises(InvalidArgument, match=words):
        raise InvalidArgument(answer.json()["error"]["message"])
    assert sorted((platform.home / "artifacts").rglob("*")) == before


def test_a_box_comes_from_files_or_from_an_image(platform: PlatformUnderTest) -> None:
    headers = {"Authorization": f"Bearer {(platform.home / 'token').read_text().strip()}"}
    with httpx.Client(base_url=platform.running["url"], headers=headers, trust_env=False) as http:
        for parts in ({}, {"data": {"image": "a"}, "files": {"files": ("modelbox.yaml", b"{}")}}):
            answer = http.post("/v1/boxes", **parts)
            assert answer.status_code == 400 and "expected one of the two" in answer.json()["error"]["message"]


def test_a_gateway_killed_while_it_installs_leaves_nothing(platform: PlatformUnderTest, tmp_path: Path) -> None:
    waits = tmp_path / "hold"
    waits.touch()
    folder = write(tmp_path / "held", waits=str(waits))
    before = len(platform.client.get("/v1/artifacts", kind="box", limit=200)["artifacts"])
    failures: list[Exception] = []

    def install() -> None:
        try:
            platform.client.install_box(folder)
        except Unavailable as error:
            failures.append(error)

    with ApiClient(platform.running["url"], (platform.home / "token").read_text().strip()) as watcher:
        installing = threading.Thread(target=install)
        installing.start()
        wait_until(Path(f"{waits}.seen").exists, 60)
        platform.kill("gateway")
        assert has_ended(platform.pid_of("gateway"))
        installing.join()
        waits.unlink()
        assert len(failures) == 1
        # The next gateway, which has answered, found the folder and its lock.
        assert "held" not in [box["name"] for box in watcher.get("/v1/boxes", limit=200)["boxes"]]
        assert len(watcher.get("/v1/artifacts", kind="box", limit=200)["artifacts"]) == before
        assert list((platform.home / "installing").iterdir()) == []
    assert platform.client.install_box(folder)["box"] == "held:1"
    assert says(platform, "held") == ("held:1", "")


def test_a_damaged_folder_ends_its_job_and_installing_it_again_mends_it(
    platform: PlatformUnderTest, tmp_path: Path
) -> None:
    folder = write(tmp_path / "frail", says="whole")
    installed = platform.client.install_box(folder)
    store = FolderStore(platform.home / "artifacts")
    (entry,) = store.entries(installed["digest"])
    blob = store.path(entry.digest)
    blob.chmod(0o644)
    blob.write_bytes(b"{}")
    done = platform.wait_end(platform.submit("preprocess", box="frail")["id"])
    assert (done["state"], done["reason"]) == ("failed", "input-lost")
    assert "the folder of box frail:1" in done["error"]["message"] and "install it again" in done["error"]["message"]
    assert platform.client.install_box(folder)["box"] == "frail:1"
    assert says(platform, "frail") == ("frail:1", "whole")


def test_the_command_line_installs_lists_submits_and_uninstalls(
    platform: PlatformUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(platform.home))
    folder = write(tmp_path / "typed", title="Typed")
    runner = CliRunner()
    told = runner.invoke(box_commands, ["install", str(folder)])
    assert told.output.startswith("installed typed:1; submit: rdukit job submit typed VERB")
    told = runner.invoke(box_commands, ["install", str(folder / "modelbox.yaml"), "--json"])
    assert json.loads(told.output)["is_new"] is False
    told = runner.invoke(box_commands, ["installed"])
    assert [line.split()[0] for line in told.output.splitlines() if "Typed" in line] == ["typed:1"]
    listed = json.loads(runner.invoke(box_commands, ["installed", "--json"]).output)["boxes"]
    assert "typed:1" in [box["box"] for box in listed]
    told = runner.invoke(job_commands, ["submit", "typed:1", "preprocess", "--wait", "--json"])
    assert json.loads(told.stdout)["box"] == "typed:1"
    told = runner.invoke(job_commands, ["submit", str(folder), "preprocess"])
    assert isinstance(told.exception, InvalidArgument) and "rdukit box install" in told.exception.message
    told = runner.invoke(box_commands, ["installed", "typed"])
    assert told.output.startswith("typed:1: Typed\n") and "1 <= x <= 1000" in told.output
    told = runner.invoke(box_commands, ["installed", "counter", "--json"])
    assert json.loads(told.output)["title"] == "Counts"
    told = runner.invoke(box_commands, ["uninstall", "typed:1"])
    assert told.output == "uninstalled typed:1\n"
    told = runner.invoke(box_commands, ["install", str(tmp_path / "gone")])
    assert isinstance(told.exception, NotFound)
    told = runner.invoke(box_commands, ["install", "registry.example/boxes/mine:1"])
    assert isinstance(told.exception, InvalidArgument) and "job boxes are processes here" in told.exception.message


@pytest.mark.long
def test_a_box_with_a_model_of_its_own_trains_as_a_job(tmp_path: Path) -> None:
    """The real ModelBox command, and the folder that ``rdukit box new --module`` writes."""
    from rdukit_modelbox.contract.box import find_box_file

    folder = tmp_path / "mine"
    folder.mkdir()
    for name, data in new_box_files("mine", find_box_file("logreg").read_text(), has_module=True).items():
        (folder / name).write_bytes(data)
    built = {"pef": "@compile.pef", "dataset": "@preprocess.dataset"}
    steps = [
        {"name": "preprocess", "box": "mine", "verb": "preprocess", "parameters": {"limit": 640}},
        {"name": "compile", "box": "mine", "verb": "compile", "parameters": {"batch_size": 32}},
        {"name": "train", "box": "mine", "verb": "train", "parameters": {"epochs": 3}, "inputs": built},
    ]
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": str(min(os.cpu_count() or 1, 2))}
    with short_folder() as home, platform_under_test(home, None, environment) as platform:
        assert platform.client.install_box(folder)["box"] == "mine:1"
        jobs = platform.client.submit("/v1/pipelines", {"name": "own", "steps": steps})["jobs"]
        done = [platform.wait_end(job["id"]) for job in jobs]
        assert [(job["box"], job["state"]) for job in done] == [("mine:1", "succeeded")] * 3, done
        assert done[2]["result"]["accuracy"] > 0.7
