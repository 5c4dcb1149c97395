"""Search in jobs: what words find, along which index, and how it goes on where not all jobs were looked through."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from rdukit.errors import InvalidArgument
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import JobRow, MembershipRow, UserRow
from rdukit_platform.jobs import listing
from rdukit_platform.jobs.schemas import JobRequest
from rdukit_platform.jobs.search import MAX_SEARCH, name_people, read_search
from rdukit_platform.jobs.service import submit_job
from rdukit_platform.tenants.service import create_tenant
from rdukit_platform.tenants.tokens import create_token
from support import shows
from support.platform.processes import counter_boxes, fresh_database

pytestmark = shows("jobs")


class Tenant:
    """A tenant with a user and a token, and its jobs."""

    def __init__(self, database: Database, name: str) -> None:
        self.database = database
        with database.write() as session:
            self.id = create_tenant(session, name, 0.0).id
            user = UserRow(
                id=f"usr-{name}",
                issuer="i",
                subject=name,
                email=f"ada@{name}.example",
                name="Ada",
                is_admin=False,
                created_at=0.0,
            )
            session.add(user)
            session.flush()
            session.add(
                MembershipRow(user_id=user.id, tenant_id=self.id, role="viewer", is_claimed=False, created_at=0.0)
            )
            self.user, self.token = user.id, create_token(session, self.id, "nightly", ["jobs:read"], 0.0)[0].id

    def submit(self, at: float = 1.0, by: str | None = None, **asked: object) -> str:
        """Return the id of a new job."""
        request = JobRequest.model_validate({"box": "counter", "verb": "preprocess", **asked})
        with self.database.write() as session:
            return submit_job(session, counter_boxes(), self.id, request, at, by).id

    def find(self, text: str, state: str | None = None, **labels: str) -> list[str]:
        """Return the ids of the jobs that a search finds on its first page."""
        with self.database.read() as session:
            return [row.id for row in listing.find_jobs(session, self.id, text, state, labels=labels).jobs]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with fresh_database(tmp_path) as database:
        yield database


@pytest.fixture
def lab(database: Database) -> Tenant:
    return Tenant(database, "lab")


def test_each_word_is_found_wherever_it_may_be(lab: Tenant) -> None:
    by_user = lab.submit(1.0, lab.user, name="Digits 100%", labels={"project": "genes", "note": "a_b \u00e9"})
    by_token = lab.submit(2.0, lab.token, name="digits again")
    assert lab.find("DIGITS") == [by_token, by_user] and lab.find("counter pre") == [by_token, by_user]
    assert lab.find("digits gene") == lab.find("100%") == lab.find("a_b") == lab.find("\u00e9") == [by_user]
    assert (
        lab.find("project=genes")
        == lab.find("project=genes digits")
        == lab.find("digits", project="genes")
        == [by_user]
    )
    assert lab.find("ada@lab") == lab.find(lab.user) == [by_user]
    assert lab.find("nightly") == lab.find(lab.token) == [by_token]
    assert lab.find(by_user) == lab.find(by_user[:9] + " digits") == lab.find(by_user[:5] + " 100%") == [by_user]
    assert lab.find("digits", state="queued") == [by_token, by_user] and lab.find("digits", state="failed") == []
    for nothing in ("axb", "d%s", "project=other", "digits elsewhere", "job-zzzzzzzz", "genes", by_user[:9] + "!"):
        assert lab.find(nothing, **({"project": "none"} if nothing == "genes" else {})) == [], nothing
    with lab.database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == by_user).values(reason="box-failed"))
        assert name_people(session, [lab.user, lab.token, None]) == {
            lab.user: "ada@lab.example", lab.token: "token nightly"
        }  # fmt: skip
    assert lab.find("box-fail") == [by_user]


def test_a_word_with_an_equals_sign_that_is_no_label_is_a_word(lab: Tenant) -> None:
    named = lab.submit(name="lr=0.1 run")
    assert lab.find("lr=0.1") == [named]


def test_jobs_of_one_box_are_found_by_its_exact_name_with_and_without_a_version(lab: Tenant) -> None:
    builtin, old, new = (lab.submit(float(at), name=name, labels={"k": "1"}) for at, name in enumerate(("a", "b", "c")))
    with lab.database.write() as session:
        for job, version in ((old, 1), (new, 2)):
            session.execute(update(JobRow).where(JobRow.id == job).values(box="ours", box_version=version))

    def of_box(box: str, text: str = "", **asked: Any) -> list[str]:
        with lab.database.read() as session:
            return [row.id for row in listing.find_jobs(session, lab.id, text, box=box, **asked).jobs]

    assert of_box("counter") == [builtin]
    assert of_box("ours") == of_box("ours", labels={"k": "1"}) == of_box("ours", state="queued") == [new, old]
    assert of_box("ours:1") == of_box("ours@1") == of_box("ours", "b") == of_box("ours:1", old[:9]) == [old]
    assert of_box("our") == of_box("ours:3") == of_box("counter:1") == of_box("ours", state="failed") == []
    assert of_box("ours", labels={"k": "2"}) == of_box("counter", "b") == of_box("counter", old[:9]) == []
    for wrong in ("", ":1", "ours:new", "ours:0", "a\x00b", "x" * 129):
        with pytest.raises(InvalidArgument, match="expected"):
            of_box(wrong)


def test_nobody_finds_another_tenants_jobs(database: Database, lab: Tenant) -> None:
    other = Tenant(database, "other")
    theirs = other.submit(1.0, other.user, name="secret", labels={"project": "genes"})
    for text in ("secret", theirs, theirs[:9], "project=genes", other.user, "ada@other", "counter"):
        assert lab.find(text) == [] and other.find(text) == [theirs], text


@pytest.mark.parametrize("asked", ["needle", "needle k=1", "box"])
def test_it_goes_on_where_it_stopped_looking(lab: Tenant, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    words, box = ("", "other") if asked == "box" else (asked, None)
    monkeypatch.setattr(listing, "LOOKED_THROUGH", 3)
    names = ["needle", *["hay"] * 7, "needle", "needle"]
    # Two at the same time each: what came last on a page is told by its id.
    ids = [lab.submit(float(number // 2), name=name, labels={"k": "1"}) for number, name in enumerate(names)]
    with lab.database.write() as session:
        session.execute(update(JobRow).where(JobRow.name == "needle").values(box="other"))
    found, cursor, reached = list[str](), None, list[float | None]()
    while True:
        with lab.database.read() as session:
            page = listing.find_jobs(session, lab.id, words, limit=1, cursor=cursor, box=box)
        found += [row.id for row in page.jobs]
        reached.append(page.searched_to)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert sorted(found) == sorted([ids[0], ids[8], ids[9]]) and found[-1] == ids[0]
    assert reached[0] is None and reached[-1] is None
    looked = [at for at in reached if at is not None]
    assert looked and looked == sorted(looked, reverse=True)


def test_what_is_no_search_is_refused() -> None:
    for wrong in ("x" * (MAX_SEARCH + 1), "a b c d e f g h i", "\x00"):
        with pytest.raises(InvalidArgument, match="expected"):
            read_search(wrong)
    assert read_search("  ").words == () and read_search("A a").words == ("a",)
