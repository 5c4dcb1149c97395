"""``sambatune_ui``: list of runs, report and comparison on loopback, with a password that is new at every start."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from rdukit.errors import InvalidArgument
from rdukit_runtime.sambatune.ui.app import USER, make_app
from rdukit_runtime.sambatune.ui.command import sambatune_ui
from support import shows
from support.sambatune_runs import write_run

pytestmark = shows("sambatune", "sambatune_ui")

HOSTILE = "<script>alert(1)</script>"
PASSWORD = "known"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_run(tmp_path, "first", 64, 100.0)
    write_run(tmp_path, "second", 128, 150.0)
    return tmp_path


@pytest.fixture
def client(root: Path) -> Iterator[TestClient]:
    app = make_app(root, PASSWORD)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=True) as client:
        client.auth = (USER, PASSWORD)
        yield client


def test_runs_are_listed_shown_and_compared_configuration_first(client: TestClient) -> None:
    listed = client.get("/").text
    assert "first" in listed and "second" in listed and "RDU bound" in listed and "150" in listed
    assert "RUN HW" in client.get("/runs/first").text
    compared = client.get("/compare", params={"run": ["first", "second"]}).text
    parts = [compared.index(part) for part in ("-b 64", "-b 128", "RUN HW", "0 gemm")]
    assert parts == sorted(parts)
    assert "150 (1.500 times the first)" in compared
    exported = client.get("/compare.csv", params={"run": ["first", "second"]}).text
    assert "Configuration: what differs,model-args,'-b 64,'-b 128" in exported


def test_nothing_is_shown_without_the_password_or_to_another_host(client: TestClient, root: Path) -> None:
    for auth in (None, (USER, "guess"), ("root", PASSWORD)):
        with TestClient(make_app(root, PASSWORD), base_url="http://127.0.0.1") as stranger:
            for path in ("/", "/runs/first", "/style.css", "/compare", "/runs/first/files/reports/report.html"):
                answer = stranger.get(path, auth=auth) if auth else stranger.get(path)
                assert answer.status_code == 401, path
    assert client.get("/", headers={"Host": "attacker.example"}).status_code == 400


def test_reports_are_served_in_a_sandbox_and_nothing_outside_of_the_run(client: TestClient, root: Path) -> None:
    shown = client.get("/runs/first/files/reports/report.html")
    assert shown.text == "<p>the page</p>"
    assert shown.headers["content-security-policy"] == "sandbox allow-scripts"
    download = client.get("/runs/first/files/reports/section_report.csv")
    assert download.headers["content-disposition"].startswith("attachment")
    (root / "secret").write_text("secret")
    (root / "sambatune_gen/first/reports/link").symlink_to(root / "secret")
    for path in ("reports/link", "%2e%2e/%2e%2e/secret", "../second/configuration.json", "/etc/passwd", "reports"):
        assert client.get(f"/runs/first/files/{path}").status_code == 404, path
    assert client.get("/runs/%2e%2e/files/secret").status_code == 404


def test_hostile_and_damaged_reports_are_escaped_or_left_out(client: TestClient, root: Path) -> None:
    folder = write_run(root, "third", 1, 1.0, section=HOSTILE)
    assert HOSTILE not in client.get("/runs/third").text
    assert HOSTILE not in client.get("/compare", params={"run": ["first", "third"]}).text
    for path in ("reports/analysis/summary.json", "reports/runtime_perf_info.json", "configuration.json"):
        for text in (b"[1]", b"{", b"\xff", b"[" * 100_000, b'{"Overview": 3, "throughput_samples_s": true}'):
            (folder / path).write_bytes(text)
            for page in ("/", "/runs/third", "/compare?run=third&run=first"):
                assert client.get(page).status_code == 200, (path, text[:10], page)
    for text in (b"a,b\n1,2,3\n4\n", b"\n\n1,2\n", b"a\n\0\n", b"a,a\n1\n", b"a\n" + b"x" * 200_000):
        for path in ("reports/snprof/summary.csv", "reports/section_report.csv", "reports/stage_report.csv"):
            (folder / path).write_bytes(text)
            for page in ("/runs/third", "/compare?run=third&run=first", "/compare.csv?run=third&run=first"):
                assert client.get(page).status_code == 200, (path, text[:10], page)
    for number in ("1e999", "NaN", "1" + "0" * 400, '"x"'):
        (folder / "reports/runtime_perf_info.json").write_text(f'{{"throughput_samples_s": {number}}}')
        assert "not measured" in client.get("/").text, number


@pytest.mark.parametrize(
    ("path", "status"), [("/compare?run=first", 400), ("/compare?run=first&run=none", 404), ("/runs/none", 404)]
)
def test_wrong_choices_say_what_was_expected(client: TestClient, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert "first page" in answer.text


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    found = CliRunner().invoke(sambatune_ui, ["--directory", str(tmp_path), "--port", "0"])
    assert isinstance(found.exception, InvalidArgument)
    assert "sambatune_gen" in found.exception.message


def test_the_command_prints_url_user_and_a_password_that_work(root: Path) -> None:
    command = [sys.executable, "-m", "rdukit_runtime.sambatune.ui.command", "--directory", str(root), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = dict(process.stdout.readline().strip().split(": ", 1) for _ in range(3))
        try:
            answer = httpx.get(lines["URL"], auth=(lines["user"], lines["password"]), timeout=60)
            refused = httpx.get(lines["URL"], auth=(lines["user"], "guess"), timeout=60)
        finally:
            process.terminate()
    assert lines["URL"].startswith("http://127.0.0.1:")
    assert (answer.status_code, refused.status_code) == (200, 401)
    assert "second" in answer.text
