"""Endpoints of bundles: experts chosen by their names, counted by them, kept with what they are made of, and moved.

One has two experts; the other all that a bundle may have: two configurations, a draft, an adapter and a router.
"""

import copy
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import openai
import pytest
import torch
from safetensors.torch import save_file

from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit_modelbox.tasks.adapters import add_adapters
from rdukit_platform.client import Platform
from rdukit_platform.client.artifacts import Artifact
from rdukit_zoo.language.decoder import generate_by_recomputing
from rdukit_zoo.language.llama import Llama
from support import shows
from support.helpers import wait_until
from support.platform.processes import PlatformUnderTest, platform_under_test, run_rdukit, short_folder
from support.text_boxes import TINY, make_text_model, make_tiny_llama

pytestmark = [
    shows("bundles", "endpoints", "endpoint calls", "endpoint", "console", "router", "llama"),
    pytest.mark.long,
]

#: A slow machine is waited for.
FAST = {
    "RDUKIT_KERNELS": "portable", "RDUKIT_ENDPOINT_WAIT_S": "300", "RDUKIT_WORKER_START_S": "300",
    "RDUKIT_BOX_LOAD_TIMEOUT_S": "280", "RDUKIT_WORKER_BOX_ENVIRONMENT": "RDUKIT_BOX_LOAD_TIMEOUT_S,RDUKIT_KERNELS",
}  # fmt: skip
PROMPT, MADE = [104, 101, 108, 108, 111], 8
ALIAS = "Meta-Llama-3.3-70B-Instruct"
#: As models are called at the hub.
HUB_ALIAS = f"meta-llama/{ALIAS}"
#: Of as many tokens as one run reads: what is longer is chosen for by its beginning.
PROMPTS = {"Poems about rain": "poet", "Loops never end.": "judge"}


class Parts:
    """Artifacts of a tenant that bundles name, and the models that the experts are."""

    def __init__(self, folder: Path, platform: Platform) -> None:
        self.models = {"poet": make_tiny_llama(), "coder": make_tiny_llama()}
        for number, model in enumerate(self.models.values()):
            torch.manual_seed(number)
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    torch.nn.init.normal_(parameter, std=0.3)
        pef, checkpoint = make_text_model(folder, self.models["poet"], {**TINY, "precision": "f32"}, texts=2)
        others = folder / "others"
        others.mkdir()
        state = {name: tensor.clone() for name, tensor in self.models["coder"].state_dict().items()}
        save_file(state, others / "coder.safetensors")
        shutil.copy(checkpoint / "tokenizer.json", others)
        self.pef, self.poet = platform.artifacts.add(pef, "pef"), platform.artifacts.add(checkpoint, "checkpoint")
        self.others = platform.artifacts.add(others, "checkpoint")
        self.file = folder / "bundle.yaml"

    def write(self, old: str = "", new: str = "") -> Path:
        """Write the bundle, with ``new`` in place of ``old``."""
        text = f"""\
apiVersion: rdukit.dev/v1
kind: Bundle
name: two
memory: {{host: 1GiB}}
configurations:
  - {{name: small, pef: artifact://{self.pef.id}, batch: 2}}
experts:
  - {{name: poet, configuration: small, checkpoint: artifact://{self.poet.id}, pinned: true}}
  - {{name: coder, configuration: small, checkpoint: artifact://{self.others.id}/coder.safetensors, aliases: [{ALIAS}]}}
"""
        assert old in text
        self.file.write_text(text.replace(old, new))
        return self.file

    def gold(self, expert: str) -> list[int]:
        """Return what the expert makes of the prompt."""
        return list(generate_by_recomputing(self.models[expert], torch.tensor([PROMPT]), MADE))


@pytest.fixture(scope="module")
def running() -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, None, FAST) as running:
        yield running


@pytest.fixture(scope="module")
def platform(running: PlatformUnderTest) -> Iterator[Platform]:
    with Platform(running.running["url"], (running.home / "token").read_text().strip()) as platform:
        yield platform


@pytest.fixture(scope="module")
def parts(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Parts:
    return Parts(tmp_path_factory.mktemp("parts"), platform)


@pytest.fixture(scope="module")
def bundle(platform: Platform, parts: Parts) -> Artifact:
    return platform.artifacts.add(parts.write(), "bundle")


@pytest.fixture(scope="module")
def client(platform: Platform, running: PlatformUnderTest, bundle: Artifact) -> Iterator[openai.OpenAI]:
    """Serve the bundle as ``chat``. Yields a client of it."""
    endpoint = platform.endpoints.create("chat", bundle=bundle).wait(400)
    key, http = (running.home / "token").read_text().strip(), openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key=key, max_retries=0, http_client=http) as client:
        yield client


def make(client: openai.OpenAI, model: str) -> list[int]:
    """Return the bytes that a model makes of the prompt; what ends a text is 256."""
    answer = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=MADE, temperature=0, logprobs=0, extra_body={"ignore_eos": True}
    )
    chances = answer.choices[0].logprobs
    assert chances is not None and chances.tokens is not None
    text = b"".join(bytes.fromhex(one[8:]) if one.startswith("bytes:\\x") else one.encode() for one in chances.tokens)
    return list(text.replace(b"<|endoftext|>", b"\xff\xff"))


def as_bytes(tokens: list[int]) -> list[int]:
    return [byte for token in tokens for byte in ([token] if token < 256 else [255, 255])]


def test_the_models_of_a_bundle_are_listed_chosen_by_name_or_alias_and_counted(
    client: openai.OpenAI, parts: Parts, platform: Platform, running: PlatformUnderTest, bundle: Artifact
) -> None:
    states = {model.id: getattr(model, "state", None) for model in client.models.list()}
    assert states == {"poet": "Live", "coder": "Offline"}
    golds = {name: as_bytes(parts.gold(name)) for name in ("poet", "coder")}
    assert golds["poet"] != golds["coder"]
    for model, expert in (("poet", "poet"), ("coder", "coder"), (ALIAS, "coder")):
        assert make(client, model) == golds[expert], model
    with pytest.raises(openai.NotFoundError, match="expected poet, coder"):
        make(client, "clerk")
    chunks = client.chat.completions.create(
        model=ALIAS, messages=[{"role": "user", "content": "Hi"}], max_tokens=4, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    assert {chunk.model for chunk in chunks} == {"coder"}

    def calls() -> dict[str, int]:
        models = platform.endpoints.get("chat").info.models or []
        return {one["name"]: one["usage"]["requests"] for one in models}

    used = {"poet": 1, "coder": 3}
    wait_until(lambda: calls() == used)
    text = httpx.get(
        f"{running.running['url']}/metrics", headers={"Authorization": f"Bearer {client.api_key}"}, trust_env=False
    ).text  # fmt: skip
    counted = re.findall(r'^rdukit_endpoint_requests_total\{endpoint="chat",model="(\w+)",.*\} (.+)$', text, re.M)
    assert {name: float(count) for name, count in counted} == used
    info = platform.endpoints.get("chat").info
    assert (info.bundle, info.model, info.box) == (bundle.id, "poet", "llama")
    assert info.models and [one["aliases"] for one in info.models] == [[], [ALIAS]]
    shown = run_rdukit("endpoint", "show", "chat", *_of(running))
    assert "MODEL" in shown and ALIAS in shown
    words = ["endpoint", "call", "chat", "--prompt", "Hi", "--model", "coder", *_of(running)]
    assert len({run_rdukit(*words, "--temperature", "0") for _ in range(3)}) == 1


def _of(running: PlatformUnderTest) -> list[str]:
    return ["--token", f"@{running.home / 'token'}"]


@pytest.fixture(autouse=True)
def _gateway(running: PlatformUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_GATEWAY_URL", running.running["url"])


def test_what_a_bundle_is_made_of_stays_and_is_its_lineage(
    client: openai.OpenAI, platform: Platform, parts: Parts, bundle: Artifact
) -> None:
    for artifact in (parts.pef, parts.poet, parts.others, bundle):
        with pytest.raises(Conflict, match="endpoint chat, revision 1"):
            artifact.delete()
    found = platform.api.get(f"/v1/artifacts/{bundle.id}/lineage")
    assert {(link["parent"], link["slot"]) for link in found["links"]} == {
        (parts.pef.id, "configurations.0.pef"), (parts.poet.id, "experts.0.checkpoint"),
        (parts.others.id, "experts.1.checkpoint"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("host: 1GiB", "host: 1KiB", "does not fit: pinned experts take"),
        (
            "/coder.safetensors",
            "/clerk.safetensors",
            "bundle.yaml:9:.*'artifact://.*/clerk.safetensors' does not exist",
        ),
        ("artifact://", "", "bundle.yaml:6:.*is not an artifact; expected artifact://ID"),
    ],
)
def test_what_cannot_be_served_is_told_with_its_line(
    platform: Platform, parts: Parts, old: str, new: str, told: str
) -> None:
    wrong = platform.artifacts.add(parts.write(old, new), "bundle")
    with pytest.raises(InvalidArgument, match=told) as refused:
        platform.endpoints.create("wrong", bundle=wrong)
    assert "/installing/" not in refused.value.message
    wrong.delete()


def test_no_other_tenant_serves_or_calls_what_is_not_its_own(
    client: openai.OpenAI, running: PlatformUnderTest, platform: Platform, parts: Parts, bundle: Artifact
) -> None:
    tenant = platform.api.post("/v1/tenants", {"name": "lab"})
    token = platform.api.post(f"/v1/tenants/{tenant['id']}/tokens", {"scopes": ["read", "write"]})["token"]
    with Platform(platform.url, token) as stranger:
        with pytest.raises(NotFound):
            stranger.endpoints.create("chat", bundle=bundle)
        own = stranger.artifacts.add(parts.write(), "bundle")
        with pytest.raises(InvalidArgument, match=f"bundle.yaml:6:.*'artifact://{parts.pef.id}' does not exist"):
            stranger.endpoints.create("chat", bundle=own)
        with pytest.raises(NotFound):
            stranger.api.post("/v1/endpoints/chat/v1/completions", {"model": "poet", "prompt": "Hi"})


def test_the_playground_has_both_experts_of_one_endpoint_side_by_side(
    client: openai.OpenAI, running: PlatformUnderTest
) -> None:
    path, token = "/console/endpoints/chat/playground", (running.home / "token").read_text().strip()
    with httpx.Client(base_url=str(running.running["url"]), timeout=60.0, trust_env=False) as browser:
        assert browser.post("/console/login", data={"token": token}).status_code == 303
        form = browser.get(path).text
        assert '<option value="coder">' in form and "<option>chat/coder</option>" in form
        given = {"form": "chat", "prompt": "Hi", "model": "coder", "beside": "chat/poet", "max_tokens": "4"}
        answer = browser.post(path, data=given).text
        for name in ("chat/coder", "chat/poet"):
            assert re.search(rf'<h2 class="small quiet">{name}</h2>\s*<p class="said">', answer), answer
        assert '<option value="coder" selected>' in answer and "<option selected>chat/poet</option>" in answer
        assert "expected poet, coder" in browser.post(path, data={**given, "model": "clerk"}).text
        assert "<td>coder</td>" in browser.get("/console/endpoints/chat").text


@pytest.mark.long
def test_another_bundle_takes_over_without_a_failed_request(
    client: openai.OpenAI, running: PlatformUnderTest, platform: Platform, parts: Parts
) -> None:
    stop, failures, answers = Event(), list[Exception](), list[list[int]]()

    def call() -> None:
        while not stop.is_set():
            try:
                answers.append(make(client, "poet"))
            except openai.OpenAIError as error:
                failures.append(error)

    caller = Thread(target=call)
    caller.start()
    try:
        file = str(parts.write("name: coder", "name: clerk"))
        run_rdukit("endpoint", "update", "chat", "--bundle", file, *_of(running))
        platform.endpoints.get("chat").wait(400)
        assert make(client, "clerk") == as_bytes(parts.gold("coder"))
    finally:
        stop.set()
        caller.join()
    assert not failures and len(answers) > 2
    assert all(answer == as_bytes(parts.gold("poet")) for answer in answers)
    info = platform.endpoints.get("chat").roll_back().wait(400).info
    assert info.models and [one["name"] for one in info.models] == ["poet", "coder"]


class WholeBundle:
    """An endpoint of a bundle with all that one may have, and its clients."""

    def __init__(self, url: str, key: str, models: dict[str, Llama]) -> None:
        self.models = models
        self.http = httpx.Client(
            base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60.0, trust_env=False
        )
        self.client = openai.OpenAI(
            base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=openai.DefaultHttpxClient(trust_env=False)
        )


@pytest.fixture(scope="module")
def whole(
    client: openai.OpenAI, platform: Platform, running: PlatformUnderTest, parts: Parts,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[WholeBundle]:  # fmt: skip
    folder, key = tmp_path_factory.mktemp("whole"), (running.home / "token").read_text().strip()
    clerk = copy.deepcopy(parts.models["coder"])
    add_adapters(clerk, 2, 8.0, TINY["vocabulary"])
    torch.manual_seed(7)
    for name, parameter in clerk.named_parameters():
        if "lora" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    sizes = {**TINY, "context_length": 128, "precision": "f32", "adapters": 2, "adapter_rank": 4}
    wide, _ = make_text_model(folder, parts.models["coder"], sizes, texts=2)
    save_file({name: value.clone() for name, value in clerk.state_dict().items()}, folder / "clerk.safetensors")
    lines = [json.dumps({"prompt": prompt, "expert": expert}) for prompt, expert in PROMPTS.items()]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    run_rdukit(
        "router", "train", str(folder / "prompts.jsonl"), "--to", str(folder / "router.safetensors"), "--neighbours",
        "1", "--hold-out", "0", "--embeddings", str(client.base_url), "--model", "poet", "--token", key,
    )  # fmt: skip
    added = {
        name: platform.artifacts.add(folder / file, kind).id
        for name, file, kind in (
            ("wide", wide, "pef"), ("clerk", "clerk.safetensors", "checkpoint"),
            ("router", "router.safetensors", "file"),
        )
    }  # fmt: skip
    coder = f"artifact://{parts.others.id}/coder.safetensors"
    bundle = {
        "apiVersion": "rdukit.dev/v1", "kind": "Bundle", "name": "whole", "memory": {"host": "1GiB"},
        "configurations": [
            {"name": "small", "pef": f"artifact://{parts.pef.id}", "context": 256, "batch": 2},
            {"name": "wide", "pef": f"artifact://{added['wide']}", "context": 128, "batch": 2, "precision": "f32",
             "draft": {"expert": "coder"}},
        ],
        "experts": [
            {"name": "poet", "configuration": "small", "checkpoint": f"artifact://{parts.poet.id}", "pinned": True},
            {"name": "coder", "configuration": "small", "checkpoint": coder},
            {"name": "judge", "configuration": "wide", "checkpoint": coder, "aliases": [HUB_ALIAS],
             "adapters": [{"name": "clerk", "checkpoint": f"artifact://{added['clerk']}"}]},
        ],
        "router": {"name": "pick", "file": f"artifact://{added['router']}"},
    }  # fmt: skip
    (folder / "bundle.yaml").write_text(json.dumps(bundle))
    bundled = platform.artifacts.add(folder / "bundle.yaml", "bundle")
    endpoint = platform.endpoints.create("whole", bundle=bundled).wait(400)
    whole = WholeBundle(endpoint.url, key, {**parts.models, "judge": parts.models["coder"], "clerk": clerk})
    yield whole
    whole.http.close()
    whole.client.close()


@pytest.mark.long
def test_experts_of_two_configurations_an_adapter_and_a_draft_make_their_own_texts(whole: WholeBundle) -> None:
    states = {model.id: getattr(model, "state", None) for model in whole.client.models.list()}
    assert states == {"poet": "Live", "coder": "Offline", "judge": "Offline", "clerk": "Offline", "pick": None}
    for name, model in whole.models.items():
        gold = list(generate_by_recomputing(model, torch.tensor([PROMPT]), MADE))
        assert make(whole.client, name) == as_bytes(gold), name
    assert make(whole.client, "clerk") != make(whole.client, "judge")
    assert {model.id: getattr(model, "configuration", None) for model in whole.client.models.list()} == {
        "poet": "small", "coder": "small", "judge": "wide", "clerk": "wide", "pick": None,
    }  # fmt: skip
    assert whole.client.models.retrieve("pick").id == "pick"
    with pytest.raises(openai.NotFoundError, match=r"expected poet, .*pick"):
        make(whole.client, "nobody")
    assert "draft" in whole.http.get("/v2/models/judge").text
    # One that is not loaded is an answer, and no replica that is not ready.
    assert whole.http.get("/v2/models/poet/ready").status_code == 200


@pytest.mark.long
def test_a_router_of_a_bundle_chooses_by_the_vectors_of_an_expert(whole: WholeBundle) -> None:
    for prompt, expert in PROMPTS.items():
        messages: Any = [{"role": "user", "content": prompt + " And more of that."}]
        answer = whole.client.chat.completions.with_raw_response.create(model="pick", messages=messages, max_tokens=1)
        assert answer.parse().model == expert
        assert re.fullmatch(f"{expert}; confidence=1.000", answer.headers["x-rdukit-expert"])
    assert whole.client.completions.create(model="coder", prompt="Poems about rain", max_tokens=1).model == "coder"
    body: dict[str, Any] = {
        "items": [{"value": prompt} for prompt in PROMPTS],
        "params": {"max_tokens_to_generate": 2, "select_expert": "pick", "process_prompt": True},
    }
    assert whole.http.post("/api/v2/predict/generic/p/whole", json=body).headers["x-rdukit-expert"] == "judge, poet"
    del body["items"][0], body["params"]["process_prompt"]
    told = whole.http.post("/api/v2/predict/generic/stream/p/pick", json=body).headers["x-rdukit-expert"]
    assert told == "judge; confidence=1.000"


@pytest.mark.long
def test_the_playground_asks_a_router_and_an_adapter(whole: WholeBundle, running: PlatformUnderTest) -> None:
    path, token = "/console/endpoints/whole/playground", (running.home / "token").read_text().strip()
    with httpx.Client(base_url=str(running.running["url"]), timeout=60.0, trust_env=False) as browser:
        assert browser.post("/console/login", data={"token": token}).status_code == 303
        given = {"form": "chat", "prompt": "Hi", "model": "pick", "beside": "whole/clerk", "max_tokens": "4"}
        answer = browser.post(path, data=given).text
        for name in ("whole/pick", "whole/clerk"):
            assert re.search(rf'<h2 class="small quiet">{name}</h2>\s*<p class="said">', answer), answer


@pytest.mark.long
def test_a_name_with_a_slash_means_its_expert_and_every_api_counts_it(whole: WholeBundle, platform: Platform) -> None:
    def counted() -> dict[str, int]:
        models = platform.endpoints.get("whole").info.models or []
        return {one["name"]: one["usage"]["requests"] for one in models}

    # What is counted is written now and then, and all at once: what was asked before is written when any of this is.
    poet = counted()["poet"]
    make(whole.client, "poet")
    wait_until(lambda: counted()["poet"] > poet)
    before = counted()
    assert whole.client.models.retrieve(HUB_ALIAS).id == "judge"
    for name in (HUB_ALIAS, HUB_ALIAS.replace("/", "%2F")):
        assert whole.http.get(f"/v2/models/{name}").json()["name"] == "judge"
    body: dict[str, Any] = {"items": [{"value": "a"}], "params": {"max_tokens_to_generate": 2}}
    for path in (f"generic/p/{HUB_ALIAS}", f"generic/stream/p/{HUB_ALIAS.replace('/', '%2F')}"):
        assert whole.http.post(f"/api/v2/predict/{path}", json=body).headers["x-rdukit-expert"] == "judge"
    body["params"]["select_expert"] = "clerk"
    whole.http.post("/api/v2/predict/generic/p/whole", json=body).raise_for_status()
    whole.client.responses.create(model="clerk", input="a", max_output_tokens=1)
    whole.client.embeddings.create(model="coder", input="a")
    more = {"judge": 2, "clerk": 2, "coder": 1}
    wait_until(lambda: all(counted()[name] == before[name] + count for name, count in more.items()))


@pytest.mark.long
def test_states_are_those_of_all_replicas_and_an_expert_is_asked_where_it_is_loaded(
    whole: WholeBundle, client: openai.OpenAI, platform: Platform
) -> None:
    platform.endpoints.get("chat").update(replicas=2).wait(400)
    make(client, "poet")
    for _ in range(5):
        make(client, "coder")
    listed = {model.id: model.model_extra or {} for model in client.models.list()}
    assert listed["poet"]["states"] == {"Live": 2} and listed["coder"]["states"] == {"Live": 1, "Offline": 1}
    assert (client.models.retrieve("poet").model_extra or {})["states"] == {"Live": 2}
