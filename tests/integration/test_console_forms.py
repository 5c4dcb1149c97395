"""The console's forms that run boxes: what they offer, what they submit, and how they refuse."""

import html
import io
import re
import time
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from sqlalchemy import select

from rdukit_platform.api.context import Platform
from rdukit_platform.api.rates import Rates
from rdukit_platform.artifacts.service import record_artifact
from rdukit_platform.db.models import JobRow
from rdukit_platform.sweeps.advance import advance_sweeps
from rdukit_platform.tenants.scopes import READ
from rdukit_platform.tenants.service import create_tenant, find_tenant
from rdukit_platform.tenants.tokens import create_token
from support import shows
from support.platform.console import console_platform, first_token, log_in
from support.platform.gateway import Example, serving

pytestmark = shows("console", "jobs", "pipelines", "sweeps")

COMPILE = "/console/catalog/logreg/run/compile"
TRAIN = "/console/catalog/logreg/run/train"
PIPELINE = "/console/catalog/logreg/pipeline"
SWEEP = "/console/catalog/logreg/sweep/train"


@pytest.fixture
def platform() -> Iterator[Platform]:
    with console_platform() as opened:
        yield opened


@pytest.fixture
def client(platform: Platform) -> Iterator[httpx.Client]:
    """A browser without JavaScript, logged in."""
    with serving(platform) as address, httpx.Client(base_url=address, timeout=60.0) as client:
        log_in(client, first_token(platform))
        yield client


def rows(platform: Platform) -> list[JobRow]:
    with platform.database.read() as session:
        found = session.scalars(select(JobRow).order_by(JobRow.created_at)).all()
        session.expunge_all()
        return list(found)


def error_at(text: str, key: str) -> str:
    """Return what the page says is wrong at a field."""
    found = re.search(rf'id="{key.replace(".", "-")}-error">(.*?)</p>', text, re.DOTALL)
    assert found is not None, f"{key} has no error"
    return html.unescape(found[1])


def filled(text: str) -> dict[str, str]:
    """Return what a browser sends of a page's form when nobody changes it."""
    form = text[text.index('class="run"') :]
    inputs = re.findall(r'<input type="[a-z]+"[^>]*? name="([^"]+)" value="([^"]*)"', form)
    given = {name: html.unescape(value) for name, value in inputs if f'name="{name}" value="true"' not in form}
    given |= dict.fromkeys(re.findall(r'name="([^"]+)" value="true" checked', form), "true")
    for name, body in re.findall(r'<select [^>]*?name="([^"]+)"[^>]*>(.*?)</select>', form, re.DOTALL):
        chosen = re.search(r'value="([^"]*)" selected', body)
        given[name] = html.unescape(chosen[1]) if chosen else ""
    return given


def test_a_form_left_as_it_is_submits_the_defaults(client: httpx.Client, platform: Platform) -> None:
    page = client.get(COMPILE)
    assert page.status_code == 200
    assert '<option value="32" selected>' in page.text
    answer = client.post(COMPILE, data=filled(page.text))
    [job] = rows(platform)
    assert answer.headers["location"] == f"/console/jobs/{job.id}"
    assert (job.box, job.verb, job.parameters, job.inputs) == ("logreg", "compile", {}, {})


def test_values_priority_limits_and_labels_reach_the_job_with_their_types(
    client: httpx.Client, platform: Platform
) -> None:
    changes = {
        "set.batch_size": "64", "set.clip_gradients": "true", "set.precision": "f32", "name": "mine", "priority": "-3",
        "run_limit": "15m", "max_attempts": "2", "labels": "project=genes\n who = me ",
    }  # fmt: skip
    answer = client.post(COMPILE, data=filled(client.get(COMPILE).text) | changes)
    [job] = rows(platform)
    assert answer.headers["location"].endswith(job.id)
    assert job.parameters == {"batch_size": 64, "clip_gradients": True, "precision": "f32"}
    assert (job.name, job.priority, job.run_limit_s, job.max_attempts) == ("mine", -3, 900.0, 2)
    assert job.labels == {"project": "genes", "who": "me"}
    text = client.get(f"/console/jobs/{job.id}").text
    for told in ("<dd>-3</dd>", "15 min an attempt", "project=genes", "who=me"):
        assert told in text


def test_a_form_sent_twice_is_one_job_and_with_changes_another(client: httpx.Client, platform: Platform) -> None:
    given = filled(client.get(COMPILE).text)
    first, second = (client.post(COMPILE, data=given).headers["location"] for _ in range(2))
    assert first == second
    assert client.post(COMPILE, data=given | {"set.mode": "o1"}).headers["location"] != first
    assert len(rows(platform)) == 2


def test_wrong_values_come_back_at_their_fields_and_nothing_is_lost(client: httpx.Client, platform: Platform) -> None:
    wrong = {"set.epochs": "many", "set.lr": "7", "set.schedule": "zig<b>zag", "set.momentum": "0.25"}
    wrong |= {"priority": "9.5", "run_limit": "soon", "labels": "no sign"}
    answer = client.post(TRAIN, data=wrong)
    assert answer.status_code == 422
    text = answer.text
    assert error_at(text, "set.epochs") == "'many' is not a whole number; expected 1 <= x <= 100"
    assert error_at(text, "set.lr") == "7.0 is not valid; expected 0 < x <= 1"
    assert "expected one of constant, linear, cosine" in error_at(text, "set.schedule")
    assert "expected -100 to 100" in error_at(text, "priority")
    assert "15m" in error_at(text, "run_limit")
    assert "KEY=VALUE" in error_at(text, "labels")
    assert "choose an artifact" in error_at(text, "input.pef")
    assert 'value="many"' in text
    assert 'value="0.25"' in text
    assert "zig<b>" not in text
    assert "zig&lt;b&gt;zag" in text
    assert rows(platform) == []


def test_only_checking_submits_nothing_and_writes_the_command(client: httpx.Client, platform: Platform) -> None:
    given = filled(client.get(COMPILE).text) | {"set.batch_size": "16", "tiles": "0", "labels": "a=b c", "act": "check"}
    answer = client.post(COMPILE, data=given)
    assert answer.status_code == 200
    assert "Everything is valid" in answer.text
    command = "rdukit job submit logreg compile --set batch_size=16 --tiles 0 --label &#39;a=b c&#39;"
    assert command in answer.text
    assert rows(platform) == []


def test_artifacts_that_fit_are_offered_and_those_of_others_are_neither_shown_nor_taken(
    client: httpx.Client, platform: Platform
) -> None:
    with platform.database.write() as session:
        own = find_tenant(session, "default")
        assert own is not None
        tenants = own.id, create_tenant(session, "other", time.time()).id
    with platform.database.write() as session:
        content = platform.store.add_stream(io.BytesIO(b"a PEF"))
        mine, theirs = (record_artifact(session, one, "p", "pef", content, time.time()).id for one in tenants)
    job = Example(platform.database, platform.store, tenants[1], time.time()).run_pipeline()[1]
    text = client.get(TRAIN).text
    assert mine in text
    assert theirs not in text
    answer = client.post(TRAIN, data={"input.pef": theirs, "input.dataset": theirs})
    assert answer.status_code == 422
    assert "there is no artifact" in html.unescape(answer.text)
    assert client.get(f"{TRAIN}?job={job}").status_code == 404
    assert client.get(f"/console/jobs/{job}/again").status_code == 404


def test_a_job_is_run_again_with_changes(client: httpx.Client, platform: Platform) -> None:
    given = {"set.batch_size": "100", "set.mode": "o1", "name": "first", "labels": "k=v", "priority": "4"}
    first = client.post(COMPILE, data=given).headers["location"]
    answer = client.get(f"{first}/again", follow_redirects=True)
    again = filled(answer.text)
    assert (again["set.batch_size"], again["set.mode"], again["name"]) == ("100", "o1", "first")
    client.post(COMPILE, data=again | {"labels": "k=v", "set.mode": "o3"})
    one, two = rows(platform)
    assert one.parameters == {"batch_size": 100, "mode": "o1"}
    assert two.parameters == {"batch_size": 100}
    assert (one.labels, one.priority) == (two.labels, two.priority) == ({"k": "v"}, 4)


def test_a_pipeline_chains_its_steps_and_says_which_step_is_missing(client: httpx.Client, platform: Platform) -> None:
    given = filled(client.get(PIPELINE).text)
    answer = client.post(PIPELINE, data={key: given[key] for key in given if key != "compile.on"})
    assert answer.status_code == 422
    assert "step compile is not selected" in error_at(answer.text, "train.input.pef")
    answer = client.post(PIPELINE, data=given | {"train.set.epochs": "0"})
    assert "expected 1 <= x <= 100" in error_at(answer.text, "train.set.epochs")
    assert rows(platform) == []
    answer = client.post(PIPELINE, data=given | {"train.set.epochs": "2"})
    assert answer.headers["location"].startswith("/console/pipelines/")
    steps = {job.step: job for job in rows(platform)}
    assert list(steps) == ["preprocess", "compile", "train"]
    assert steps["train"].inputs == {"pef": "@compile.pef", "dataset": "@preprocess.dataset"}
    assert steps["train"].parameters == {"epochs": 2}


def test_forms_of_other_sites_and_of_readers_are_refused(client: httpx.Client, platform: Platform) -> None:
    for path in (COMPILE, PIPELINE, SWEEP):
        assert client.post(path, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    with platform.database.write() as session:
        tenant = find_tenant(session, "default")
        assert tenant is not None
        reader = create_token(session, tenant.id, "reader", [READ], time.time())[1]
    log_in(client, reader)
    assert "Run it" not in client.get(COMPILE).text
    assert client.post(COMPILE).status_code == 403
    assert rows(platform) == []


def test_a_sweep_is_begun_by_a_form_that_counts_its_trials_and_refuses_at_its_fields(
    client: httpx.Client, platform: Platform
) -> None:
    found = client.get("/console/sweeps/new?box=logreg")
    assert found.headers["location"] == SWEEP
    with platform.database.write() as session:
        tenant = find_tenant(session, "default")
        assert tenant is not None
        content = platform.store.add_stream(io.BytesIO(b"[]"))
        data = record_artifact(session, tenant.id, "d", "dataset", content, time.time()).id
    form = "/console/catalog/logreg/sweep/preprocess"
    given = filled(client.get(form).text) | {
        "input.data": data, "name": "limits", "labels": "a=b", "objective": "train_samples", "max_parallel": "1",
    }  # fmt: skip
    wrong = {"try.limit": "10:9", "try.test_ratio": "0.1,2", "try.bad_rows": "error,,skip", "max_trials": "0"}
    text = client.post(form, data=given | wrong).text
    assert "an empty value between commas" in error_at(text, "try.bad_rows")
    assert "expected 1 to 1000" in error_at(text, "max_trials")
    for tried, told in (
        ({"try.limit": "10:9"}, "expected low below high"), ({"try.limit": "1:9"}, "or the algorithm random"),
        ({"try.limit": "-1"}, "expected 0 <= x <= 60000"), ({"try.limit": "1:9:sqrt"}, "neither log nor int"),
    ):  # fmt: skip
        answer = client.post(form, data=given | tried)
        assert (answer.status_code, told in error_at(answer.text, "try.limit")) == (422, True)
    assert "no parameter has values to try" in client.post(form, data=given).text
    tried = {"try.limit": "10, 20,30", "try.normalize": "mnist,none", "set.test_ratio": "0.5"}
    assert "Everything is valid: 6 trials." in client.post(form, data=given | tried | {"act": "check"}).text
    first, again = (client.post(form, data=given | tried).headers["location"] for _ in range(2))
    assert first == again
    advance_sweeps(platform.database, time.time())
    [job] = rows(platform)
    assert (job.parameters, job.labels["a"]) == ({"test_ratio": 0.5, "limit": 10, "normalize": "mnist"}, "b")
    assert "train_samples" in client.get(first).text
    like = client.get(f"/console/jobs/{job.id}/sweep", follow_redirects=True).text
    assert filled(like)["set.test_ratio"] == "0.5"
    drawn = given | {"try.limit": "1:9", "algorithm": "random", "max_trials": "4", "stop.metric": "", "act": "check"}
    assert "Everything is valid: 4 trials." in client.post(form, data=drawn).text


def test_trials_and_steps_of_forms_count_as_requests(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_GATEWAY_TOKEN_RATE", "8")
    limited = replace(platform, rates=Rates("redis+socket:///nowhere/valkey.sock"))
    with serving(limited) as address, httpx.Client(base_url=address, timeout=60.0) as client:
        log_in(client, platform.home.token_file.read_text().strip())
        form = "/console/catalog/logreg/sweep/compile"
        given = {"try.batch_size": "16,32,50,64,100,128", "objective": "sections"}
        told = client.post(form, data=given | {"try.mode": "o0,o1"})
        assert "the sweep has 12 trials, but a token may send 8 jobs per minute" in told.text
        steps = {"preprocess.on": "true", "compile.on": "true"}
        assert client.post(PIPELINE, data=steps).status_code == 303
        told = client.post(form, data=given)
        assert "the 6 trials of the sweep exceed that now" in told.text
        assert len(rows(platform)) == 2


def test_a_text_of_several_lines_is_kept_with_its_line_ends(client: httpx.Client, platform: Platform) -> None:
    path = "/console/catalog/gpt2/run/preprocess"
    page = client.get(path).text
    assert '<textarea id="set-prompt_prefix"' in page and '<input type="text" id="set-prompt_keyword"' in page
    answer = client.post(path, data=filled(page) | {"set.prompt_prefix": "Question:\r\n"})
    assert answer.status_code == 303, error_at(answer.text, "set.prompt_prefix")
    [job] = rows(platform)
    assert job.parameters == {"prompt_prefix": "Question:\n"}
    again = client.get(f"{path}?job={job.id}").text
    assert ">\nQuestion:\n</textarea>" in again
    refused = client.post(path, data=filled(page) | {"set.prompt_prefix": "x" * 1001})
    assert "is not valid" in error_at(refused.text, "set.prompt_prefix")
