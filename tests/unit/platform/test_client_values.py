"""The client's values beside the schemas of the API."""

import asyncio
from dataclasses import fields

import pytest
from pydantic import BaseModel

from rdukit.errors import InvalidArgument, NotFound
from rdukit_platform import client
from rdukit_platform.artifacts import service
from rdukit_platform.client import asynchronous, bridge, sweeps, values, webhooks
from rdukit_platform.client.asynchronous import AsyncPlatform
from rdukit_platform.client.http import ApiClient
from rdukit_platform.client.jobs import Job
from rdukit_platform.client.platform import Platform
from rdukit_platform.jobs import metrics, schemas
from rdukit_platform.sweeps import schemas as sweep_schemas
from rdukit_platform.webhooks import service as webhook_service
from support import shows

pytestmark = shows("python-client")


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (values.JobInfo, schemas.Job),
        (values.AttemptInfo, schemas.Attempt),
        (values.Event, schemas.EventRecord),
        (values.MetricPoint, metrics.MetricPoint),
        (values.ArtifactInfo, service.Artifact),
        (values.FileInfo, service.File),
        (sweeps.SweepInfo, sweep_schemas.Sweep),
        (sweeps.TrialInfo, sweep_schemas.TrialShown),
        (webhooks.WebhookInfo, webhook_service.NewWebhook),
        (webhooks.DeliveryInfo, webhook_service.DeliveryView),
    ],
)
def test_a_value_has_the_keys_of_its_schema(value: type, schema: type[BaseModel]) -> None:
    assert [field.name for field in fields(value)] == list(schema.model_fields)


def test_the_asynchronous_client_has_each_method_of_the_other() -> None:
    for name, cls in vars(asynchronous).items():
        if name.startswith("Async") and name not in {"AsyncPlatform", "AsyncArtifact"}:
            (base,) = cls.__orig_bases__
            sync = base.__args__[0]
            public = {each for each in vars(sync) if not each.startswith("_")}
            assert public - {"info", "id", "name", "state"} <= set(vars(cls)), name
            for each in public & set(vars(cls)):
                assert isinstance(vars(cls)[each], property) or vars(cls)[each].__doc__ == vars(sync)[each].__doc__
    platform = vars(Platform("http://127.0.0.1:1", "token"))
    assert set(platform) - {"api"} <= set(vars(AsyncPlatform("http://127.0.0.1:1", "token")))


def test_annotations_find_the_asynchronous_classes_next_to_the_others() -> None:
    things = {"Artifact", "Job", "Pipeline", "Platform", "Sweep"}
    assert {"AsyncEndpoint", *things, *(f"Async{name}" for name in things)} <= set(client.__all__)


def test_blocking_code_in_a_coroutine_waits_by_awaiting_and_ends_when_that_is_cancelled() -> None:
    seen: list[str] = []

    def work(name: str, turns: int) -> str:
        try:
            for turn in range(turns):
                seen.append(f"{name}{turn}")
                bridge.sleep(0.0)
        except asyncio.CancelledError:
            seen.append(f"{name} ends")
            bridge.sleep(0.0)  # what it waits for at its end is awaited, too
            raise
        return name

    async def together() -> list[str]:
        found = await asyncio.gather(bridge.run(work, "a", 2), bridge.run(work, "b", 2))
        endless = asyncio.create_task(bridge.run(work, "c", 1 << 60))
        while "c1" not in seen:
            await asyncio.sleep(0)
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
        with pytest.raises(ZeroDivisionError):
            await bridge.run(lambda: 1 // 0)
        return found

    assert asyncio.run(together()) == ["a", "b"]
    assert seen[:4] == ["a0", "b0", "a1", "b1"] and seen[-1] == "c ends"
    with pytest.raises(RuntimeError, match="await its methods"):
        bridge.sleep(0.0)


def test_a_value_leaves_out_what_it_does_not_know_and_has_defaults_for_what_is_missing() -> None:
    job = values.JobInfo.of(
        {"id": "job-1", "name": "n", "box": "b", "verb": "train", "state": "running", "colour": "red",
         "attempts": [{"number": 1, "mood": "good"}]}
    )  # fmt: skip
    assert (job.labels, job.attempts) == ({}, (values.AttemptInfo(1),))


def test_an_address_that_is_no_url_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'nonsense' is not a gateway's address"):
        Platform("nonsense", "token")


def test_inputs_that_are_no_mapping_are_refused() -> None:
    with Platform("http://127.0.0.1:1", "token") as platform, pytest.raises(InvalidArgument, match="mapping of slots"):
        platform.jobs.submit("logreg", "train", inputs=3)  # type: ignore[arg-type]


def test_an_output_that_is_not_there_is_answered_with_those_that_are() -> None:
    info = values.JobInfo.of(
        {"id": "job-1", "name": "n", "box": "b", "verb": "compile", "state": "succeeded", "outputs": {"pef": "art-1"}}
    )
    with ApiClient("http://127.0.0.1:1", "token") as api:
        outputs = Job(api, info).outputs
        assert (outputs["pef"].id, "pev" in outputs, outputs.get("pev")) == ("art-1", False, None)
        with pytest.raises(NotFound, match=r"job job-1, which is succeeded, has no output 'pev'. Did you mean 'pef'\?"):
            outputs["pev"]
