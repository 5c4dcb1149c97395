"""The Python client: its page as its reader follows it, and jobs of every state behind a gateway."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdukit.errors import Cancelled, Conflict, DeadlineExceeded, IllegalValue, InvalidArgument, NotFound, Unavailable
from rdukit_platform.client import AsyncPlatform, Platform
from rdukit_platform.tenants.service import find_tenant
from support import shows, wait_until
from support.pages import code_blocks, read_page
from support.platform.gateway import Example, gateway_under_test
from support.platform.processes import platform_under_test, run_rdukit, short_folder

pytestmark = shows("python-client", "job", "webhook", "jobs", "sweeps", "endpoints", "experts", "webhooks")

PAGE = "python-client.md"


@pytest.mark.long
def test_the_page_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = code_blocks(read_page(PAGE))
    with short_folder() as home, platform_under_test(home, None, {"RDUKIT_KERNELS": "portable"}):
        monkeypatch.setenv("RDUKIT_HOME", str(home))
        monkeypatch.chdir(tmp_path)
        names: dict[str, Any] = {}
        for block in blocks:
            exec(compile(block, PAGE, "exec"), names)
        wait_until(lambda: names["platform"].tenants.own().tiles == 0)
        names["platform"].close()
    said = capsys.readouterr().out
    assert "succeeded 0.9" in said and "epochs" in said
    assert re.search(r"^succeeded art-\w+$", said, re.MULTILINE), "the page's pipeline"
    assert re.search(r"^\[1, 10\] http://127\.0\.0\.1:\d+/v1/endpoints/digits$", said, re.MULTILINE), said
    assert re.search(r"^succeeded \{.*'succeeded': 2.*\} \{'lr': 0\.", said, re.MULTILINE), "the page's sweep"
    assert re.search(r"^hook-\w+ \['job.failed'\]$", said, re.MULTILINE), "the page's webhook"
    # The endpoint that the page deletes has its tiles until its replica has ended.
    assert re.search(r"^default: 0 jobs on [04] tiles, \d+ artifacts$", said, re.MULTILINE), said
    assert "[('succeeded', 100), ('succeeded', 200)]" in said, "the page's asynchronous program"
    assert len([line for line in said.splitlines() if line.startswith("job-")]) == 3
    assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir())


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Platform, dict[str, str], Example]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_HOME", str(tmp_path_factory.mktemp("home")))
        with gateway_under_test() as gateway:
            opened = gateway.platform
            with opened.database.read() as session:
                tenant = find_tenant(session, "default")
                assert tenant is not None
            example = Example(opened.database, opened.store, tenant.id, opened.clock.now())
            with Platform(gateway.url) as platform:
                yield platform, example.fill(), example


Filled = tuple[Platform, dict[str, str], Example]


def test_a_failed_job_raises_the_class_of_its_error(example: Filled) -> None:
    platform, ids, _ = example
    with pytest.raises(IllegalValue, match="batch_size is 33") as caught:
        platform.jobs.get(ids["failed"]).wait()
    assert caught.value.detail["job"] == ids["failed"]
    assert platform.jobs.get(ids["failed"]).wait(check=False).info.reason == "box-failed"
    with pytest.raises(Cancelled, match="cancelled-by-user"):
        platform.jobs.get(ids["cancelled"]).wait()
    with pytest.raises(NotFound):
        platform.jobs.get("job-none")


def test_waiting_ends_in_time_and_the_job_goes_on(example: Filled) -> None:
    platform, ids, _ = example
    job = platform.jobs.get(ids["running"])
    with pytest.raises(DeadlineExceeded, match="and continues"):
        job.wait(timeout_s=0.3)
    assert job.refresh().state == "running"


def test_lists_go_over_pages_and_find_by_label(example: Filled) -> None:
    platform, _, _ = example
    mine = [
        platform.jobs.submit("logreg", "compile", labels={"set": "pages"}, idempotency_key=f"page-{n % 3}").id
        for n in range(4)
    ]
    assert mine[3] == mine[0]
    pages = platform.api.pages("/v1/jobs", "jobs", label=["set=pages"], limit=1)
    assert {each["id"] for each in pages} == set(mine)
    assert {job.id for job in platform.jobs.list(labels={"set": "pages"})} == set(mine)
    assert next(platform.jobs.list()).id in mine
    for job in platform.jobs.list(labels={"set": "pages"}):
        assert job.cancel().cancel().has_ended


def test_what_a_job_made_and_said_is_there(example: Filled, tmp_path: Path) -> None:
    platform, ids, _ = example
    job = platform.jobs.get(ids["succeeded"])
    assert [event.data["to"] for event in job.events() if event.kind == "state"][-1] == "succeeded"
    assert list(job.logs()) == list(job.logs(follow=True))
    steps = [point.values["step"] for point in job.metrics()]
    assert steps and steps == sorted(steps)
    (artifact,) = job.outputs.values()
    path = artifact.download(tmp_path / "got")
    assert path.exists() and artifact.info.job_id == job.id
    with pytest.raises(Conflict, match="exists already"):
        artifact.download(path)
    again = platform.jobs.submit("logreg", "compile").cancel().clone(name="once more")
    assert (again.info.name, again.info.verb, again.cancel().state) == ("once more", "compile", "cancelled")


async def _use_asynchronously(url: str, ids: dict[str, str], folder: Path) -> None:
    async with AsyncPlatform(url) as platform:
        running, done = [await platform.jobs.get(ids[state]) for state in ("running", "succeeded")]
        waiting = [asyncio.create_task(running.wait()) for _ in range(50)]
        assert [line async for line in done.logs(follow=True)] == [line async for line in done.logs()] != []
        with pytest.raises(DeadlineExceeded, match="and continues"):
            await running.wait(timeout_s=0.3)
        for task in waiting:
            assert not task.done()
            task.cancel()
        assert {type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)} == {
            asyncio.CancelledError
        }
        assert (await done.wait()).state == "succeeded"
        with pytest.raises(IllegalValue, match="batch_size is 33"):
            await (await platform.jobs.get(ids["failed"])).wait()
        (artifact,) = done.outputs.values()
        assert (await artifact.download(folder / "got")).exists()
        (folder / "words").write_text("words")
        added = await platform.artifacts.add(folder / "words", kind="folder")
        assert (await added.download(folder / "again")).read_text() == "words"
        listed = [job.id async for job in platform.jobs.list(search="logreg")]
        assert ids["succeeded"] in listed
        assert ids["succeeded"] in [job.id async for job in platform.jobs.list(box="logreg")]
        assert [job.id async for job in platform.jobs.list(box="log")] == []
        async for job in platform.jobs.list():
            assert job.id in listed
            break
        submitted = await platform.jobs.submit("logreg", "train", inputs={"dataset": artifact}, idempotency_key="never")
        raise AssertionError(submitted)


def test_an_asynchronous_program_does_all_that_another_does(example: Filled, tmp_path: Path) -> None:
    platform, ids, _ = example
    with pytest.raises(InvalidArgument, match="lacks the inputs"):
        asyncio.run(_use_asynchronously(platform.url, ids, tmp_path))


def test_sweeps_webhooks_and_the_tenants_use_are_there(example: Filled) -> None:
    platform, _, _ = example
    sweep = platform.sweeps.submit(
        "logreg", "preprocess", space={"limit": [1, 2]}, maximize="train_samples", max_parallel=1, name="few"
    )
    assert (sweep.info.objective, sweep.info.max_trials) == ({"metric": "train_samples", "goal": "maximize"}, 2)
    with pytest.raises(DeadlineExceeded, match="and continues"):
        sweep.wait(timeout_s=0.3)
    assert next(platform.sweeps.list()).id == sweep.id and platform.sweeps.get(sweep.id).info.trials == ()
    with pytest.raises(Cancelled, match="cancelled by a user"):
        sweep.cancel().wait()
    hook = platform.webhooks.add("https://example.org/a")
    assert hook.secret is not None and hook.secret not in repr(hook)
    assert platform.webhooks.get(hook).secret is None and next(platform.webhooks.list()).id == hook.id
    sent = platform.webhooks.test(hook.id)
    assert platform.webhooks.disable(hook, "moves").disabled_reason == "moves"
    (given_up,) = platform.webhooks.deliveries(hook, state="dead")
    assert given_up.id == sent.id
    with pytest.raises(Conflict, match="is disabled: moves"):
        platform.webhooks.redeliver(hook, sent)
    assert platform.webhooks.enable(hook).disabled_at is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_GATEWAY_URL", platform.url)
        assert run_rdukit("webhook", "disable", hook.id, "--reason", "it moves") == f"{hook.id} is disabled: it moves\n"
        assert "disabled: it moves" in run_rdukit("webhook", "list")
        assert run_rdukit("webhook", "enable", hook.id) == f"{hook.id} is told\n"
    assert platform.webhooks.rotate(hook, 0).secret not in {None, hook.secret}
    platform.webhooks.remove(hook)
    own = platform.tenants.own()
    assert (own.name, own.artifacts > 0, own.queued_jobs > 0) == ("default", True, True)
    assert platform.tenants.get("default") == platform.tenants.get(own.id)


def test_without_a_token_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path))
    with pytest.raises(Unavailable, match="RDUKIT_TOKEN"):
        Platform("http://127.0.0.1:9")


def test_a_file_of_jobs_is_checked_whole_before_any_is_submitted(example: Filled, tmp_path: Path) -> None:
    platform, _, _ = example
    job = "apiVersion: rdukit.dev/v1\nkind: Job\nbox: logreg\nverb: compile\nlabels: {set: file}\n"
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(job + "name: first\n---\n" + job + "name: second\n")
    bad.write_text(job + "---\n" + job + "parameters: {batch_size: 33}\n")

    def submit(*words: str, status: int = 0) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RDUKIT_GATEWAY_URL", platform.url)
            return run_rdukit("job", "submit", "-f", *words, status=status)

    def names() -> list[str]:
        return sorted(found.info.name for found in platform.jobs.list(labels={"set": "file"}))

    assert submit(str(good), "--dry-run").splitlines()[0] == (
        "first: compile of box logreg, 0 tiles, would be submitted"
    )
    assert "document 2: " in submit(str(bad), status=2) and "one of 16" in submit(str(bad), "--dry-run", status=2)
    assert "-f cannot be combined with BOX, --set; set it in the file" in submit(
        str(good), "logreg", "--set", "a=1", status=2
    )
    assert names() == []
    assert [word[:4] for word in submit(str(good)).split()] == ["job-", "job-"]
    assert names() == ["first", "second"]
    both = [{"box": "logreg", "verb": "compile", "labels": {"set": "batch"}} for _ in range(2)]
    ids = platform.jobs.submit_batch(both, idempotency_key="twice")
    assert platform.jobs.submit_batch(both, idempotency_key="twice") == ids
    assert {found.id for found in platform.jobs.list(labels={"set": "batch"})} == set(ids) and len(ids) == 2
    with pytest.raises(InvalidArgument) as refused:
        platform.jobs.submit_batch([both[0], {**both[0], "verb": "fly"}])
    assert refused.value.detail["job"] == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_GATEWAY_URL", platform.url)
        found = json.loads(run_rdukit("job", "list", "--search", "set=file SECOND", "--json"))
        assert ([job["name"] for job in found["jobs"]], found["next_cursor"]) == (["second"], None)
        assert found["jobs"][0]["submitted_by"].startswith("tok-")
        assert "second" not in run_rdukit("job", "list", "--search", "set=file second elsewhere")
        of_box = json.loads(run_rdukit("job", "list", "--box", "logreg", "--search", "set=file", "--json"))
        assert {job["name"] for job in of_box["jobs"]} == {"first", "second"}
        assert "second" not in run_rdukit("job", "list", "--box", "mlp", "--search", "set=file")
