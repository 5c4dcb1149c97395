"""Experts: what may be promoted, which versions there are, how they are found, and who sees them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import delete
from sqlalchemy.exc import IntegrityError

from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit_platform.artifacts.service import record_artifact
from rdukit_platform.artifacts.store import Content
from rdukit_platform.catalog import experts
from rdukit_platform.catalog.figures import Difference, compare_figures, figures_of, headline
from rdukit_platform.catalog.model import Boxes, read_box
from rdukit_platform.catalog.own import install_box
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import ArtifactRow, ExpertRow, JobRow
from rdukit_platform.jobs import execution, service
from rdukit_platform.jobs.experts import check_promotable, is_promotable, promote_job
from rdukit_platform.jobs.schemas import JobRequest
from rdukit_platform.jobs.states import JobState
from rdukit_platform.tenants.service import create_tenant
from support import shows
from support.platform.processes import COUNTER, fresh_database

pytestmark = shows("experts")

BOXES = Boxes({"counter": read_box({**COUNTER, "licence": "MIT"})})
BOX = {"backend": "process", "id": "42", "limits": {}}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with fresh_database(tmp_path) as opened:
        yield opened


@dataclass
class Lab:
    """A tenant, and what it does at one second after the other."""

    database: Database
    name: str = "lab"
    now: float = 1.0
    tenant: str = field(init=False)

    def __post_init__(self) -> None:
        with self.database.write() as session:
            self.tenant = create_tenant(session, self.name, 0.0).id

    def submit(self, verb: str = "train", box: str = "counter") -> str:
        """Submit a job. Returns its id."""
        self.now += 1
        with self.database.write() as session:
            folder = Content("d" * 64, 3, is_folder=True)
            data = record_artifact(session, self.tenant, "data", "dataset", folder, self.now).id
            inputs = {"dataset": data} if verb == "train" else {}
            request = JobRequest(box=box, verb=verb, inputs=inputs)
            return service.submit_job(session, BOXES, self.tenant, request, self.now).id

    def train(self, *, box: str = "counter", slot: str = "checkpoint", pef: str | None = None, **result: object) -> str:
        """Let a training succeed. Returns the job's id."""
        job_id = self.submit(box=box)
        with self.database.write() as session:
            fencing = execution.admit(session, job_id, self.now)
            execution.claim(session, fencing, "worker-1", 5.0, self.now)
            execution.start(session, fencing, BOX, self.now)
            if pef is not None:
                row = session.get(JobRow, job_id)
                assert row is not None
                row.inputs = {**row.inputs, "pef": pef}
            output = execution.Output(slot, slot, "c" * 64, 3, is_folder=True)
            execution.succeed(session, fencing, [output], result or {"loss": 0.25}, self.now)
        return job_id

    def promote(self, job_id: str, name: str = "digits", **more: str | None) -> ExpertRow:
        """Promote a job."""
        self.now += 1
        with self.database.write() as session:
            return promote_job(session, BOXES, self.tenant, job_id, name, self.now, **more)  # type: ignore[arg-type]

    def found(self, *arguments: object, **options: object) -> list[str]:
        """List experts as their selectors."""
        with self.database.read() as session:
            rows, _ = experts.list_experts(session, self.tenant, *arguments, **options)  # type: ignore[arg-type]
        return [str(experts.selector_of(row)) for row in rows]

    def get(self, text: str) -> ExpertRow:
        """Return what ``text`` names."""
        with self.database.read() as session:
            return experts.get_expert(session, self.tenant, text)

    def deprecate(self, text: str, reason: str = "old data") -> list[str]:
        """Deprecate. Returns what was marked."""
        self.now += 1
        with self.database.write() as session:
            rows = experts.deprecate_expert(session, self.tenant, text, reason, self.now)
            return [str(experts.selector_of(row)) for row in rows]


@pytest.fixture
def lab(database: Database) -> Lab:
    return Lab(database)


def test_a_training_that_succeeded_is_promoted_with_all_that_it_came_from(lab: Lab) -> None:
    with lab.database.write() as session:
        pef = record_artifact(session, lab.tenant, "p", "pef", Content("e" * 64, 3, is_folder=False), 1.0).id
    job = lab.train(pef=pef, loss=0.5, steps=7, stopped_by="steps", curve=[1, 2], parts={"a": 1})
    made = lab.promote(job, description="Reads digits.")
    row = lab.get("digits")
    assert row.id == made.id
    assert (row.name, row.version, row.box, row.box_version, row.job_id) == ("digits", 1, "counter", None, job)
    assert (row.pef_id, row.description, row.created_at) == (pef, "Reads digits.", lab.now)
    assert row.metrics == {"loss": 0.5, "steps": 7, "stopped_by": "steps"}
    with lab.database.read() as session:
        checkpoint = session.get(ArtifactRow, row.checkpoint_id)
        assert checkpoint is not None
        assert (checkpoint.kind, checkpoint.job_id) == ("checkpoint", job)
        assert [one.id for one in experts.experts_of(session, lab.tenant, job_id=job)] == [row.id]
        assert [one.id for one in experts.experts_of(session, lab.tenant, checkpoint_id=checkpoint.id)] == [row.id]
        assert list(experts.experts_of(session, lab.tenant, job_id=checkpoint.id)) == []


def test_an_evaluation_is_promoted_as_the_checkpoint_it_judged_with_its_figures(lab: Lab) -> None:
    made = lab.train(loss=0.5)
    with lab.database.read() as session:
        row = session.get(JobRow, made)
        assert row is not None
        checkpoint = row.outputs["checkpoint"]
    judged = lab.train(slot="report", held_out_loss=0.25)
    with lab.database.write() as session:
        row = session.get(JobRow, judged)
        assert row is not None
        row.verb, row.inputs = "evaluate", {**row.inputs, "checkpoint": checkpoint}
    expert = lab.promote(judged)
    assert (expert.checkpoint_id, expert.metrics, expert.job_id) == (checkpoint, {"held_out_loss": 0.25}, judged)


def test_the_licence_is_that_of_the_box_unless_another_is_given(lab: Lab) -> None:
    assert lab.promote(lab.train()).licence == "MIT"
    assert lab.promote(lab.train(), licence="CC-BY-4.0").licence == "CC-BY-4.0"
    assert lab.promote(lab.train(), licence="").licence == ""


def test_an_expert_of_a_box_of_ones_own_keeps_its_version(lab: Lab) -> None:
    with lab.database.write() as session:
        description = {**COUNTER, "name": "mine", "licence": "Apache-2.0"}
        install_box(session, BOXES, lab.tenant, description, Content("a" * 64, 3, is_folder=True), 1.0)
    made = lab.promote(lab.train(box="mine"))
    assert (made.box, made.box_version, made.licence) == ("mine", 1, "Apache-2.0")
    assert lab.found(box="mine") == lab.found(box="mine:1") == ["digits:1"]
    assert lab.found(box="mine:2") == lab.found(box="counter") == []


def test_each_job_is_the_next_version_and_no_job_is_two(lab: Lab) -> None:
    first = lab.train()
    assert [lab.promote(job).version for job in (first, lab.train(), lab.train())] == [1, 2, 3]
    assert lab.promote(first, name="other").version == 1
    with pytest.raises(Conflict, match=f"job {first} is already expert digits:1.*rdukit expert deprecate digits:1"):
        lab.promote(first)
    lab.deprecate("digits:1")
    assert lab.promote(first).version == 4


def test_jobs_that_are_promoted_at_the_same_time_are_one_version_each(lab: Lab) -> None:
    jobs = [lab.train() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(lambda job: lab.promote(job).version, jobs)) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("verb", "state", "outputs", "error", "said"),
    [
        ("compile", "succeeded", {"pef": "art-1"}, InvalidArgument, "is a compile job; expected a successful train"),
        ("train", "running", {}, Conflict, "is running; expected .*; wait for it with: rdukit job watch job-1"),
        ("train", "failed", {}, Conflict, "is failed; expected a successful train job .*, or an evaluate job of one$"),
        ("train", "succeeded", {"report": "a", "log": "b"}, InvalidArgument, "made log, report and no checkpoint"),
        ("train", "succeeded", {}, InvalidArgument, "made nothing and no checkpoint"),
    ],
)  # fmt: skip
def test_what_cannot_be_promoted_is_told_with_what_can(
    verb: str, state: str, outputs: dict[str, str], error: type[Exception], said: str
) -> None:
    assert not is_promotable(verb, JobState(state), outputs)
    with pytest.raises(error, match=f"job job-1 {said}"):
        check_promotable("job-1", verb, JobState(state), outputs)


def test_jobs_that_are_no_finished_training_are_refused(lab: Lab) -> None:
    for job, error in ((lab.submit("preprocess"), InvalidArgument), (lab.submit(), Conflict)):
        with pytest.raises(error, match="expected a successful train job"):
            lab.promote(job)
    with pytest.raises(InvalidArgument, match="made weights and no checkpoint"):
        lab.promote(lab.train(slot="weights"))
    assert lab.found() == []


def test_a_job_without_a_result_has_no_figures() -> None:
    assert figures_of(None) == {}


def test_what_says_how_good_a_model_is_comes_first() -> None:
    figures = {
        "steps": 9, "stopped_by": "steps", "loss": 0.5, "train_seconds": 3.0, "accuracy": 0.9, "emulated_cycles": 7,
        "emulated_dice": 1.0, "perplexity": "Infinity", "iou": 0.8,
    }  # fmt: skip
    assert headline(figures) == ["loss", "accuracy", "perplexity"]
    assert headline({}) == []


def test_two_experts_differ_in_figures_that_both_have_and_in_those_of_one() -> None:
    found = compare_figures({"loss": 0.5, "by": "steps", "old": 1}, {"new": 2, "loss": 0.25, "by": "steps"})
    assert compare_figures({"loss": "Infinity"}, {"loss": 1.0})[0].change is None
    assert found == [
        Difference("loss", 0.5, 0.25, -0.25), Difference("by", "steps", "steps", None),
        Difference("old", 1, None, None), Difference("new", None, 2, None),
    ]  # fmt: skip


def test_words_find_names_descriptions_and_boxes(lab: Lab) -> None:
    lab.promote(lab.train(), name="digits", description="Reads handwritten Zeros")
    lab.promote(lab.train(), name="digits", description="Reads 100%_sure")
    lab.promote(lab.train(), name="weather-north")
    assert lab.found() == lab.found("  ") == ["weather-north:1", "digits:2", "digits:1"]
    assert lab.found("READS") == ["digits:2", "digits:1"]
    assert lab.found("zeros dig") == ["digits:1"]
    assert lab.found("%_") == ["digits:2"]
    assert lab.found("count north") == ["weather-north:1"]
    assert lab.found("nothing such") == []
    assert lab.found(limit=1) == ["weather-north:1"]


def test_a_name_means_its_newest_version_that_is_not_deprecated(lab: Lab) -> None:
    for _ in range(3):
        lab.promote(lab.train())
    assert lab.get("digits").version == 3
    assert lab.deprecate("digits:3", "worse than 2") == ["digits:3"]
    assert lab.get("digits").version == 2
    old = lab.get("digits:3")
    assert (old.deprecated_at, old.deprecated_reason) == (lab.now, "worse than 2")
    assert lab.found() == ["digits:2", "digits:1"]
    assert lab.found(with_deprecated=True) == ["digits:3", "digits:2", "digits:1"]
    assert lab.deprecate("digits") == ["digits:1", "digits:2"]
    assert lab.get("digits").version == 3
    assert lab.get("digits:3").deprecated_reason == "worse than 2"
    for text in ("digits", "digits:1"):
        with pytest.raises(Conflict, match="is already deprecated"):
            lab.deprecate(text)


def test_what_is_not_there_is_told_with_what_is(lab: Lab) -> None:
    with pytest.raises(NotFound, match=r"unknown expert 'x'; there are none yet; .* rdukit expert promote JOB"):
        lab.get("x")
    lab.promote(lab.train())
    with pytest.raises(NotFound, match=r"expected digits"):
        lab.get("digit")
    with pytest.raises(NotFound, match=r"expert 'digits' has no version 2; expected digits:1"):
        lab.deprecate("digits:2")
    with pytest.raises(InvalidArgument, match="expert 'digits:x': version 'x' is not valid"):
        lab.get("digits:x")


def test_another_tenant_sees_nothing_and_has_versions_of_its_own(lab: Lab) -> None:
    other = Lab(lab.database, "other")
    job = lab.train()
    lab.promote(job)
    assert other.found() == []
    for act in (other.get, other.deprecate):
        with pytest.raises(NotFound, match="there are none yet"):
            act("digits:1")
    with pytest.raises(NotFound, match="there is no job"):
        other.promote(job)
    assert other.promote(other.train()).version == 1
    assert lab.get("digits").deprecated_at is None


def test_what_an_expert_refers_to_is_not_deleted(lab: Lab) -> None:
    made = lab.promote(lab.train())
    with pytest.raises(IntegrityError), lab.database.write() as session:
        session.execute(delete(ArtifactRow).where(ArtifactRow.id == made.checkpoint_id))
