"""Boxes that tenants install: versions, selectors, who may, who sees them, and which version a job keeps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdukit.errors import Conflict, InvalidArgument, NotFound, PermissionDenied
from rdukit_platform.artifacts.store import Content
from rdukit_platform.catalog import own
from rdukit_platform.catalog.catalog import clear_incoming, incoming_folder
from rdukit_platform.catalog.check import check_parameters
from rdukit_platform.catalog.model import Selector, read_box, read_box_folder, read_selector
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import ArtifactRow, JobRow
from rdukit_platform.jobs import pipelines, service
from rdukit_platform.jobs.schemas import JobRequest, PipelineRequest, show_job
from rdukit_platform.tenants.service import create_tenant
from support import shows
from support.platform.processes import COUNTER, counter_boxes, fresh_database

pytestmark = shows("modelbox-own-model", "catalog", "security")

BOXES = counter_boxes()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with fresh_database(tmp_path) as opened:
        yield opened


@pytest.fixture
def tenant(database: Database) -> str:
    with database.write() as session:
        return create_tenant(session, "lab", 0.0).id


def install(database: Database, tenant: str, content: str, name: str = "mine") -> tuple[int, bool]:
    """Install a box with this content. Returns its version and whether it is new."""
    description = {**COUNTER, "name": name, "title": content}
    with database.write() as session:
        folder = Content(content[0] * 64, 3, is_folder=True)
        installed = own.install_box(session, BOXES, tenant, description, folder, 1.0)
        return installed.row.version, installed.is_new


def submit(database: Database, tenant: str, box: str, **body: object) -> JobRow:
    with database.write() as session:
        request = JobRequest.model_validate({"box": box, "verb": "preprocess", **body})
        return service.submit_job(session, BOXES, tenant, request, 1.0)


@pytest.mark.parametrize(
    ("text", "selector"),
    [("mine", Selector("mine")), ("mine:1", Selector("mine", 1)), ("mine@12", Selector("mine", 12))],
)
def test_a_box_is_asked_for_by_name_and_perhaps_version(text: str, selector: Selector) -> None:
    assert read_selector(text) == selector


@pytest.mark.parametrize("text", ["mine:", "mine:0", "mine:-1", "mine:x", "mine:1:2", "mine@1@2", "mine:1234567890"])
def test_a_version_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="expected a whole number from 1, as in mine:1"):
        read_selector(text)


@pytest.mark.parametrize(
    ("setting", "has_walls", "tenants", "is_refused"),
    [
        ("", False, 1, False), ("", False, 2, True), ("", True, 2, False),
        ("*", False, 2, False), ("-", False, 1, True), ("-", True, 1, True),
        ("lab", False, 2, False), ("other, lab", False, 9, False), ("other", False, 1, True), ("labs", True, 1, True),
    ],
)  # fmt: skip
def test_who_may_run_boxes_of_its_own(setting: str, has_walls: bool, tenants: int, is_refused: bool) -> None:
    why = own.why_not_own("lab", setting, has_walls, tenants)
    assert (why is not None) is is_refused
    assert why is None or "catalog.install_tenants" in why


def test_other_content_is_the_next_version_and_the_same_none(database: Database, tenant: str) -> None:
    assert install(database, tenant, "a") == (1, True)
    assert install(database, tenant, "a") == (1, False)
    assert install(database, tenant, "b") == (2, True)
    # What was installed last is what runs, also when it is what was there before.
    assert install(database, tenant, "a") == (3, True)
    assert install(database, tenant, "a", name="other") == (1, True)
    with database.read() as session:
        assert [(row.name, row.version) for row in own.newest_own(session, tenant)] == [("mine", 3), ("other", 1)]
        names = [row.name for row in session.query(ArtifactRow).order_by(ArtifactRow.name)]
        assert names == ["mine:1", "mine:2", "mine:3", "other:1"]


def test_the_name_of_a_box_that_comes_with_rdukit_is_taken(database: Database, tenant: str) -> None:
    with pytest.raises(Conflict, match="'counter' is a box of rdukit"):
        install(database, tenant, "a", name="counter")
    with pytest.raises(NotFound, match="'counter' is part of rdukit and has no versions"):
        submit(database, tenant, "counter:1")


def test_a_job_keeps_the_version_that_was_newest(database: Database, tenant: str) -> None:
    install(database, tenant, "a")
    first = submit(database, tenant, "mine", idempotency_key="k")
    install(database, tenant, "b")
    second, third = submit(database, tenant, "mine"), submit(database, tenant, "mine@1")
    assert [show_job(job).box for job in (first, second, third)] == ["mine:1", "mine:2", "mine:1"]
    assert submit(database, tenant, "mine", idempotency_key="k").id == first.id
    with pytest.raises(Conflict, match="asked for something else"):
        submit(database, tenant, "mine:2", name="mine preprocess", idempotency_key="k")
    assert show_job(submit(database, tenant, "counter")).box == "counter"


def test_the_steps_of_a_pipeline_take_versions_too(database: Database, tenant: str) -> None:
    install(database, tenant, "a")
    install(database, tenant, "b")
    body = {
        "name": "p",
        "idempotency_key": "k",
        "steps": [
            {"name": "one", "box": "mine:1", "verb": "preprocess"},
            {"name": "two", "box": "mine", "verb": "train", "inputs": {"dataset": "@one.dataset"}},
        ],
    }
    for _ in range(2):
        with database.write() as session:
            request = PipelineRequest.model_validate(body)
            _, jobs = pipelines.submit_pipeline(session, BOXES, tenant, request, 1.0)
        assert [(job.box, job.box_version) for job in jobs] == [("mine", 1), ("mine", 2)]
        install(database, tenant, "c")


def test_what_is_not_there_is_told_with_what_is(database: Database, tenant: str) -> None:
    install(database, tenant, "a")
    install(database, tenant, "b")
    with pytest.raises(NotFound, match=r"'mine' has no version 3; expected mine:1, mine:2"):
        submit(database, tenant, "mine:3")
    with pytest.raises(NotFound, match=r"unknown ModelBox 'your'; expected counter, mine"):
        submit(database, tenant, "your")
    with pytest.raises(NotFound, match=r"install FOLDER\. Did you mean 'counter'\?"):
        submit(database, tenant, "countr")


def test_another_tenant_sees_nothing_and_has_names_of_its_own(
    database: Database, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_CATALOG_INSTALL_TENANTS", "*")
    with database.write() as session:
        other = create_tenant(session, "other", 0.0).id
    install(database, tenant, "a")
    with pytest.raises(NotFound) as unknown:
        submit(database, other, "mine")
    assert unknown.value.detail == {"legal": ["counter"]}
    with database.write() as session, pytest.raises(NotFound):
        own.uninstall_box(session, BOXES, other, "mine:1", 2.0)
    with database.read() as session:
        assert own.list_own(session, other)[0] == [] == list(own.newest_own(session, other))
    assert install(database, other, "b") == (1, True)
    with database.read() as session:
        row = own.find_version(session, other, "mine", 1)
        assert row is not None and row.digest == "b" * 64


def test_a_second_tenant_ends_what_only_one_may(database: Database, tenant: str) -> None:
    install(database, tenant, "a")
    with database.write() as session:
        create_tenant(session, "other", 0.0)
    for refused in (lambda: submit(database, tenant, "mine"), lambda: install(database, tenant, "b")):
        with pytest.raises(PermissionDenied, match=r"2 tenants.*RDUKIT_CATALOG_INSTALL_TENANTS"):
            refused()
    assert submit(database, tenant, "counter").box_version is None


def test_what_a_job_takes_is_not_uninstalled(database: Database, tenant: str) -> None:
    install(database, tenant, "a")
    install(database, tenant, "b")
    job = submit(database, tenant, "mine:1")
    for text in ("mine:1", "mine"):
        with database.write() as session, pytest.raises(Conflict, match=f"1 job of box {text} has not ended: {job.id}"):
            own.uninstall_box(session, BOXES, tenant, text, 2.0)
    with database.write() as session:
        assert [row.version for row in own.uninstall_box(session, BOXES, tenant, "mine:2", 2.0)] == [2]
        found = session.get(JobRow, job.id)
        assert found is not None
        service.cancel_job(session, found, 2.0)
        assert [row.version for row in own.uninstall_box(session, BOXES, tenant, "mine", 2.0)] == [1]
    with pytest.raises(NotFound, match=r"expected counter"):
        submit(database, tenant, "mine")
    with database.write() as session, pytest.raises(NotFound):
        own.uninstall_box(session, BOXES, tenant, "mine", 3.0)
    with database.write() as session, pytest.raises(InvalidArgument, match="is part of rdukit"):
        own.uninstall_box(session, BOXES, tenant, "counter", 3.0)
    # A job that says mine:2 ran what mine:2 was.
    assert install(database, tenant, "b") == (3, True)


def test_the_platform_does_not_run_a_tenants_patterns() -> None:
    slow = {"type": "string", "pattern": "^(a+)+$", "x-cases": [{"when": {"n": [1]}, "pattern": "^(a+)+$"}]}
    parameters = [
        {"name": "n", "type": "int", "default": 1, "schema": {"type": "integer", "maximum": 3}},
        {"name": "word", "type": "string", "default": "", "schema": slow},
    ]
    raw: dict[str, Any] = {"name": "mine", "verbs": [{"name": "train", "parameters": parameters}]}
    box = read_box(raw, version=1)
    for n in (1, 2):
        check_parameters(box, box.verb("train"), {"n": n, "word": "a" * 60 + "!"})
    with pytest.raises(InvalidArgument):
        check_parameters(box, box.verb("train"), {"n": 4})
    assert read_box(raw).verbs[0].parameters[1].schema == slow


def test_a_folder_that_is_being_read_is_gone_after_it_and_one_of_a_killed_reader_at_the_next(tmp_path: Path) -> None:
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed.lock").touch()
    with incoming_folder(tmp_path) as first, incoming_folder(tmp_path) as second:
        assert first.is_dir() and second.is_dir()
        assert not (tmp_path / "killed").exists()
        clear_incoming(tmp_path)
        assert first.is_dir() and second.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_a_box_is_its_files_without_what_is_hidden_or_pythons_own(tmp_path: Path) -> None:
    for name in ("modelbox.yaml", "deep/words.txt", ".git/config", "__pycache__/model.pyc", "deep/.cache"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert [name for name, _ in read_box_folder(tmp_path)] == ["deep/words.txt", "modelbox.yaml"]
    (tmp_path / "link").symlink_to(tmp_path / "modelbox.yaml")
    with pytest.raises(InvalidArgument, match="is a link"):
        read_box_folder(tmp_path)
    with pytest.raises(NotFound, match="there is no folder"):
        read_box_folder(tmp_path / "gone")
    (tmp_path / "link").unlink()
    with (tmp_path / "data.bin").open("wb") as large:
        large.truncate(1 << 40)
    with pytest.raises(InvalidArgument, match=r"The largest is data.bin \(1 TiB\).*rdukit artifact add"):
        read_box_folder(tmp_path)
