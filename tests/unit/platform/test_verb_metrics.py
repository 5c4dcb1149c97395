"""What a box declares of its verbs, as the platform takes it: metrics that are chosen by, and verbs that always run."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from rdukit.errors import IllegalValue
from rdukit_platform.artifacts.service import record_artifact
from rdukit_platform.artifacts.store import Content
from rdukit_platform.catalog.entries import Entry, EntryKind, EntryQuery, EntrySort, find_entries
from rdukit_platform.catalog.model import Boxes, directions_of, read_box
from rdukit_platform.db.engine import Database
from rdukit_platform.jobs.caching import cache_base
from rdukit_platform.jobs.pipelines import submit_pipeline
from rdukit_platform.jobs.schemas import PipelineRequest
from rdukit_platform.jobs.steps_picture import describe_steps, steps_of_file
from rdukit_platform.sweeps.model import SweepRequest
from rdukit_platform.sweeps.service import check_sweep
from rdukit_platform.tenants.service import create_tenant
from support import shows
from support.platform.processes import COUNTER, fresh_database

pytestmark = shows("modelbox", "sweeps", "pipelines", "catalog")

METRICS = [
    {"name": "loss", "better": "lower", "reported": "both", "help": "L."},
    {"name": "speed", "unit": "m/s", "better": "higher", "reported": "progress", "help": "S."},
    {"name": "accuracy", "better": "higher", "reported": "result", "help": "A."},
]


def declaring(**of_train: object) -> Boxes:
    """The counter, which declares its metrics."""
    raw: Any = deepcopy(dict(COUNTER))
    raw["verbs"][1] |= {"metrics": METRICS, **of_train}
    return Boxes({"counter": read_box(raw)})


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with fresh_database(tmp_path) as database:
        yield database


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objective": {"metric": "acuracy"}}, "objective: .*Did you mean 'accuracy'.* Legal: loss, speed, accuracy"),
        ({"early_stopping": {"metric": "accuracy"}}, "early_stopping: .*while it runs.* Legal: loss, speed"),
    ],
)
def test_a_sweep_by_a_metric_that_the_box_does_not_declare_is_refused(
    database: Database, changes: dict[str, object], said: str
) -> None:
    body = {"space": {"steps": {"values": [1, 2]}}, "objective": {"metric": "accuracy"}, "early_stopping": {}}
    with database.write() as session:
        tenant = create_tenant(session, "lab", 0.0).id
        data = record_artifact(session, tenant, "d", "dataset", Content("d" * 64, 3, is_folder=True), 1.0).id
        job = {"box": "counter", "verb": "train", "inputs": {"dataset": data}}
        check_sweep(session, declaring(), tenant, SweepRequest.model_validate({**body, "job": job}))
        wrong = SweepRequest.model_validate({**body, "job": job, **changes})
        check_sweep(session, declaring(metrics=[]), tenant, wrong)
        with pytest.raises(IllegalValue, match=said):
            check_sweep(session, declaring(), tenant, wrong)


def test_a_step_that_takes_the_best_of_an_unknown_metric_is_refused(database: Database) -> None:
    prepare = {"name": "prepare", "box": "counter", "verb": "preprocess"}
    learn = {"name": "learn", "box": "counter", "verb": "train", "inputs": {"dataset": "@prepare.dataset"},
             "for_each": {"steps": [1, 2]}}  # fmt: skip
    for metric, is_legal in (("accuracy", True), ("score", False)):
        use = {"name": "use", "box": "counter", "verb": "train",
               "inputs": {"dataset": f"@learn[max: {metric}].checkpoint"}}  # fmt: skip
        asked = PipelineRequest.model_validate({"name": "p", "steps": [prepare, learn, use]})
        with database.write() as session:
            tenant = create_tenant(session, metric, 0.0).id
            if is_legal:
                submit_pipeline(session, declaring(), tenant, asked, 1.0)
                continue
            with pytest.raises(IllegalValue, match=r"step 'use'.*no metric 'score'.*Legal: loss, speed, accuracy"):
                submit_pipeline(session, declaring(), tenant, asked, 1.0)


def test_a_verb_that_is_run_each_time_has_no_key_and_the_graph_says_so(database: Database) -> None:
    learn = {"name": "learn", "box": "counter", "verb": "train", "inputs": {"dataset": "@prepare.dataset"}}
    steps = [{"name": "prepare", "box": "counter", "verb": "preprocess"}, learn]
    asked = PipelineRequest.model_validate({"name": "p", "steps": steps})
    boxes = declaring(uncached=True)
    with database.write() as session:
        _, jobs = submit_pipeline(session, boxes, create_tenant(session, "lab", 0.0).id, asked, 1.0)
        assert [job.cache_base is None for job in jobs] == [False, True]
    assert cache_base(boxes.box("counter"), "train", {}) is None
    rows = describe_steps(steps_of_file(asked, {("counter", "train")}))
    assert [row[3] for row in rows] == ["yes", "no"]


def test_the_catalog_is_sorted_by_what_boxes_declare_and_by_nothing_unknown() -> None:
    known = [Entry(id=f"expert/{n}", kind=EntryKind.EXPERT, name=str(n), title="", metrics={"odd": n}) for n in (1, 2)]
    declared = directions_of(declaring())
    assert declared == {"loss": "lower", "accuracy": "higher"}

    def sort(metric: str, directions: dict[str, str]) -> list[str]:
        query = EntryQuery(sort=EntrySort.METRIC, metric=metric)
        return [entry.name for entry in find_entries(known, query, directions=directions).entries]

    assert sort("odd", declared) == ["2", "1"] and sort("odd", {"odd": "lower"}) == ["1", "2"]
    assert len(sort("accuracy", declared)) == 2
    with pytest.raises(IllegalValue, match=r"Did you mean 'accuracy'.*Legal: accuracy, loss, odd"):
        sort("acuracy", declared)
