"""``rdukit node join`` before it starts anything: what is no platform's is refused, in a line, and nothing is made."""

from io import BytesIO
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument, NotFound
from rdukit_platform.artifacts.service import record_artifact
from rdukit_platform.artifacts.stores.folder import FolderStore
from rdukit_platform.cli.node import join
from rdukit_platform.settings import Home
from rdukit_platform.tenants.service import create_tenant
from rdukit_platform.up.join import check_artifacts, open_platform
from support import FakeClock, shows
from support.platform.processes import fresh_database

pytestmark = shows("node", "nodes")

NOWHERE = "redis://:secret@127.0.0.1:1/0"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def name_platform(monkeypatch: pytest.MonkeyPatch, database: str, broker: str = NOWHERE) -> None:
    monkeypatch.setenv("RDUKIT_DATABASE_URL", database)
    monkeypatch.setenv("RDUKIT_BROKER_URL", broker)


def test_a_database_that_is_not_there_is_refused_and_not_made(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "nosuch.sqlite"
    name_platform(monkeypatch, f"sqlite:///{file}")
    with pytest.raises(NotFound, match="there is no database"):
        open_platform(home, FakeClock())
    assert not file.exists()


def test_a_database_without_a_platform_is_refused(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.sqlite").touch()
    name_platform(monkeypatch, f"sqlite:///{tmp_path}/empty.sqlite")
    with pytest.raises(NotFound, match="does not belong to a platform"):
        open_platform(home, FakeClock())


@pytest.mark.parametrize("url", ["nonsense", "nonsense://db/rdukit", "postgresql+psycopg://db:port/x", "sqlite://"])
def test_what_is_not_the_url_of_a_database_is_an_invalid_argument(
    home: Home, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    name_platform(monkeypatch, url)
    with pytest.raises(InvalidArgument, match=r"database\.url is not the URL"):
        open_platform(home, FakeClock())


def test_artifacts_that_are_not_the_platforms_are_refused(tmp_path: Path) -> None:
    with fresh_database(tmp_path) as database:
        store = FolderStore(tmp_path / "artifacts")
        check_artifacts(database, FolderStore(tmp_path / "other"))  # there is nothing yet that could be missed
        content = store.add_stream(BytesIO(b"data"))
        with database.write() as session:
            record_artifact(session, create_tenant(session, "lab", 0.0).id, "a", "data", content, 0.0)
        check_artifacts(database, store)
        with pytest.raises(NotFound, match=r"other.* has none of the platform's 1 newest artifacts; .*--artifacts"):
            check_artifacts(database, FolderStore(tmp_path / "other"))


@pytest.mark.parametrize("option", [["--name", "Bad Name"], ["--label", "zone"]])
def test_an_option_that_is_not_legal_is_named(option: list[str]) -> None:
    with pytest.raises(InvalidArgument, match=f"^{option[0]}: '{option[1]}' is not"):
        join.main(option, standalone_mode=False)
