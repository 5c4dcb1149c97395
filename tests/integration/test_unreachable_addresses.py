"""Addresses where nobody listens: what commands and services say about them."""

import gc
import json
import platform
from pathlib import Path

import pytest
from click.testing import CliRunner

from rdukit.errors import BackendUnavailable, InvalidArgument, Unavailable
from rdukit_modelbox.cli.main import box
from rdukit_modelbox.image.config import empty_config
from rdukit_modelbox.image.layout import ImageLayout, manifest_blob
from rdukit_modelbox.image.media import CONFIG_TYPE, MANIFEST_TYPE, compact_json, machine_name
from rdukit_node.daemon.run import notify, notify_ready
from rdukit_platform.backends.job_boxes import open_backend
from rdukit_platform.settings import Home
from rdukit_platform.up.join import open_platform
from support import FakeClock, shows
from support.platform.processes import fresh_database

pytestmark = shows("box", "images", "job-boxes", "nodes")

NOWHERE = "redis://:secret@127.0.0.1:1/0"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A layout with an image without layers."""
    layout = ImageLayout.create(tmp_path / "base")
    config = layout.add_blob(CONFIG_TYPE, compact_json(empty_config(machine_name(platform.machine()), "/bin", False)))
    layout.set_reference("base", layout.add_blob(MANIFEST_TYPE, manifest_blob(config, [], {})), {})
    return tmp_path / "base"


def test_a_registry_that_is_not_there_is_told(base: Path) -> None:
    to = ["docker://127.0.0.1:9/boxes/base", "--plain-http"]
    result = CliRunner().invoke(box, ["push", str(base), *to])
    assert isinstance(result.exception, Unavailable) and "cannot be reached" in result.exception.message


def run(*arguments: object) -> str:
    result = CliRunner().invoke(box, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_inspect_looks_where_its_argument_points() -> None:
    assert json.loads(run("inspect", "logreg", "--json"))["description"]["name"] == "logreg"
    words = r"no box answers at http://127\.0\.0\.1:9 \(Connection refused\); start one with: rdukit box run"
    with pytest.raises(Unavailable, match=words):
        run("inspect", "http://127.0.0.1:9")


# The docker package leaves a socket to the collector of garbage when it cannot connect it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_engine_that_does_not_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("docker")
    monkeypatch.setenv("RDUKIT_WORKER_BOX_BACKEND", "podman")
    monkeypatch.setenv("CONTAINER_HOST", f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(BackendUnavailable, match="podman does not answer at unix://"):
        open_backend(Home(tmp_path))
    gc.collect()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def name_platform(monkeypatch: pytest.MonkeyPatch, database: str, broker: str = NOWHERE) -> None:
    monkeypatch.setenv("RDUKIT_DATABASE_URL", database)
    monkeypatch.setenv("RDUKIT_BROKER_URL", broker)


def test_a_database_that_does_not_answer_is_unavailable_in_one_line_and_warned_of_once(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name_platform(monkeypatch, "postgresql+psycopg://a:secret@127.0.0.1:1/x")
    with pytest.raises(Unavailable, match="does not answer") as raised:
        open_platform(home, FakeClock())
    assert "\n" not in raised.value.message and "secret" not in raised.value.message
    assert sum("database not yet reachable" in text for text in caplog.messages) == 1


def test_the_broker_must_answer(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fresh_database(tmp_path) as database:
        url = database.url.render_as_string(hide_password=False)
        name_platform(monkeypatch, url)
        with pytest.raises(Unavailable, match=r"^broker redis://127\.0\.0\.1:1/0 does not answer$"):
            open_platform(home, FakeClock())
        name_platform(monkeypatch, url, "nonsense")
        with pytest.raises(InvalidArgument, match=r"broker\.url is not the URL"):
            open_platform(home, FakeClock())


def test_without_a_manager_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify_ready("SN30-8")
    assert not notify("READY=1", environ={"NOTIFY_SOCKET": "not-a-path"})
    assert not notify("READY=1", environ={"NOTIFY_SOCKET": "/nowhere/at/all"})
