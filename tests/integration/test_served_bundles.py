"""Twenty experts behind one server, in memory for five of them: each text is what its own model makes alone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
import tritonclient.http as triton_http
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import save_file

from rdukit.hardware import find_chip
from rdukit_modelbox.preprocessing.token_dataset import write_tokenizer
from rdukit_modelbox.preprocessing.tokenizer import END_OF_TEXT, byte_level_tokenizer
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process_tree import tree_of
from rdukit_serving.experts.bundle import load_bundle
from rdukit_serving.experts.sizes import find_bundle
from rdukit_serving.router.training import learn
from rdukit_serving.router.word_vectors import word_vector
from rdukit_zoo.language.decoder import generate_by_recomputing
from rdukit_zoo.language.llama import Llama
from support import shows
from support.boxes import run_verb
from support.helpers import wait_until
from support.platform.warm import start_box
from support.text_boxes import TINY, make_tiny_llama

pytestmark = shows("serve", "bundles", "inference", "llama")

EXPERTS, ROOM, IN_HBM, MADE = 20, 5, 3, 10
RDUKIT = Path(sys.executable).with_name("rdukit")
MODULE = "rdukit_serving.device.process"
#: Experts of another configuration, which has a process of its own.
OTHERS = (4, 11, 18)
SWITCH_SECONDS = "rdukit_box_expert_emulated_switch_seconds_total"
ALIAS = "Meta-Llama-3.3-70B-Instruct"
#: As models are called at the hub.
HUB_ALIAS = f"meta-llama/{ALIAS}"


def prompt_of(expert: int, number: int = 0) -> list[int]:
    return [(11 * expert + 7 * number + place) % 256 for place in range(3 + number)]


class Served:
    """A running server of the bundle, and the models that its experts are."""

    def __init__(self, process: subprocess.Popen[bytes], addresses: dict[str, Any], models: list[Llama]) -> None:
        self.process, self.models, self.file = process, models, Path()
        self.http = httpx.Client(base_url=addresses["rest"], trust_env=False, timeout=60)
        self.client = openai.OpenAI(
            base_url=f"{addresses['rest']}/v1", api_key="none", max_retries=0, http_client=httpx.Client(trust_env=False)
        )

    def text(self, expert: int, number: int = 0, name: str = "") -> tuple[bytes, Any]:
        answer = self.client.completions.create(
            model=name or f"expert-{expert}", prompt=prompt_of(expert, number), max_tokens=MADE, temperature=0,
            logprobs=0, extra_body={"ignore_eos": True},
        )  # fmt: skip
        tokens = answer.choices[0].logprobs.tokens  # type: ignore[union-attr]
        assert tokens is not None
        return b"".join(
            bytes.fromhex(t[8:]) if t.startswith("bytes:\\x") else t.encode() for t in tokens
        ), answer  # fmt: skip

    def gold(self, expert: int, number: int = 0) -> bytes:
        tokens = generate_by_recomputing(self.models[expert], torch.tensor([prompt_of(expert, number)]), MADE)
        return b"".join(bytes([token]) if token < 256 else END_OF_TEXT.encode() for token in tokens)

    def processes(self) -> list[int]:
        found = [facts.pid for facts in tree_of(self.process.pid)]
        return [pid for pid in found if MODULE in Path(f"/proc/{pid}/cmdline").read_text()]

    def states(self) -> dict[str, str]:
        listed = self.http.get("/v1/models").json()["data"]
        return {model["id"]: model["state"] for model in listed if model["id"] != "router"}

    def metric(self, name: str) -> dict[str, float]:
        text = self.http.get("/metrics").text
        samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
        return {each.labels.get("model", ""): each.value for each in samples if each.name == name}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("bundle")
    os.environ["RDUKIT_KERNELS"] = "portable"
    sizes = {**TINY, "precision": "f32", "target": "sn40l"}
    pef = run_verb("llama", "compile", folder, purpose="serve", batch_size=2, **sizes).outputs["pef"]
    write_tokenizer(folder, byte_level_tokenizer())
    models = []
    for number in range(EXPERTS):
        model = make_tiny_llama()
        torch.manual_seed(number)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3)
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        save_file(state, folder / "tokenizer" / f"expert-{number}.safetensors")
        models.append(model)
    bundle = {
        "apiVersion": "rdukit.dev/v1", "kind": "Bundle", "name": "twenty", "max_queue": 4, "memory": {"host": 1 << 40},
        "configurations": [
            {"name": name, "pef": str(pef.relative_to(folder)), "batch": 2, "precision": "f32"}
            for name in ("tiny", "other")
        ],
        "experts": [
            {"name": f"expert-{n}", "configuration": "other" if n in OTHERS else "tiny", "pinned": n == 0,
             "checkpoint": f"tokenizer/expert-{n}.safetensors", "aliases": [ALIAS, HUB_ALIAS] if n == 3 else []}
            for n in range(EXPERTS)
        ],
        "router": {"name": "router", "file": "router.safetensors", "default": "expert-2", "least": 0.55},
    }  # fmt: skip
    texts = {"expert-4": "a sum of numbers", "expert-5": "a poem about rain"}
    learn([word_vector(text, 64) for text in texts.values()], list(texts), 1).save(folder / "router.safetensors")
    file = folder / "bundle.yaml"
    file.write_text(json.dumps(bundle))
    sizes_of = find_bundle(load_bundle(file)).fit.configurations[0]
    fixed = 2 * (sizes_of.caches_bytes + sizes_of.graphs_bytes)
    bundle["memory"] = {"host": ROOM * sizes_of.weights_bytes, "hbm": fixed + IN_HBM * sizes_of.weights_bytes}
    file.write_text(json.dumps(bundle))
    announced, log = folder / "announced.json", folder / "log"
    command = [RDUKIT, "serve", "--bundle", file, "--rest-port", "0", "--grpc-port", "0", "--announce", announced]
    environment = {**os.environ, "RDUKIT_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    with log.open("wb") as stream:
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)
    try:
        wait_until(lambda: announced.exists() or process.poll() is not None, 60)
        assert announced.exists(), log.read_text()
        served = Served(process, json.loads(announced.read_text()), models)
        served.file = file
        yield served
        served.http.close()
        served.client.close()
    finally:
        process.terminate()
        process.wait()


def test_only_the_pinned_expert_is_there_at_first(served: Served) -> None:
    states = served.states()
    assert states.pop("expert-0") == "Live"
    assert set(states.values()) == {"Offline"} and len(states) == EXPERTS - 1
    entry = served.http.get(f"/v1/models/{ALIAS}").json()
    assert (entry["id"], entry["context_length"], entry["max_completion_tokens"]) == ("expert-3", 256, 255)
    assert served.http.get("/v2/health/ready").status_code == 200


def test_a_name_with_a_slash_is_found_by_every_client(served: Served) -> None:
    assert served.client.models.retrieve(HUB_ALIAS).id == "expert-3"
    quoted = HUB_ALIAS.replace("/", "%2F")
    for name in (HUB_ALIAS, quoted):
        assert served.http.get(f"/v1/models/{name}").json()["id"] == "expert-3"
        assert served.http.get(f"/v2/models/{name}").json()["name"] == "expert-3"
        answer = served.http.get(f"/v2/models/{name}/versions/1/ready")
        assert (answer.status_code, "Offline" in answer.text or "is offline" in answer.text) == (503, True)
    with pytest.raises(openai.NotFoundError, match="there is no model 'nobody/nothing'; expected expert-0"):
        served.client.models.retrieve("nobody/nothing")
    assert len(served.http.get("/v1/models/").json()["data"]) == EXPERTS + 1
    triton = triton_http.InferenceServerClient(served.http.base_url.netloc.decode())
    assert triton.get_model_config(HUB_ALIAS)["name"] == "expert-3"
    triton.close()
    body = {"items": [{"id": "a", "value": "hello"}], "params": {"max_tokens_to_generate": 2}}
    for stream in ("", "/stream"):
        answer = served.http.post(f"/api/v2/predict/generic{stream}/project/{quoted}", json=body)
        assert answer.status_code == 200, answer.text
    served.http.post(f"/v2/repository/models/{quoted}/unload").raise_for_status()


def test_every_expert_makes_its_own_texts_while_all_are_asked(served: Served) -> None:
    before = sum(served.metric(SWITCH_SECONDS).values())
    asked = [(expert, number) for number in range(3) for expert in range(EXPERTS)]
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda one: served.text(*one), asked))
    for (expert, number), (text, answer) in zip(asked, found, strict=True):
        assert text == served.gold(expert, number), (expert, number)
        assert answer.model == f"expert-{expert}"
    states = served.states()
    assert states["expert-0"] == "Live" and 1 <= list(states.values()).count("Live") <= ROOM
    # Memory was never for more, so that each of the others came at least once; switches are as the formula says.
    assert min(served.metric("rdukit_box_expert_loads_total").values()) >= 1
    weights = served.metric("rdukit_box_expert_weights_bytes")
    assert served.metric("rdukit_box_experts_held_bytes")[""] <= ROOM * weights["expert-0"]
    switches = served.metric("rdukit_box_expert_switches_total")
    assert sum(switches.values()) >= EXPERTS  # HBM has three of them
    seconds = served.metric(SWITCH_SECONDS)
    for name, count in switches.items():
        assert seconds[name] == pytest.approx(count * weights[name] / find_chip("sn40l").ddr_bandwidth)
    assert served.metric("rdukit_box_expert_emulated_ddr_load_bytes_total") == weights  # DDR has all of them
    # Each answer has its part, and who comes again at once has none.
    told = sum(answer.usage.emulated_switch["seconds"] for _, answer in found)
    assert told == pytest.approx(sum(seconds.values()) - before)
    served.text(1)
    assert served.text(1)[1].usage.emulated_switch == {"bytes": 0, "seconds": 0.0}


def test_a_name_that_means_no_expert_is_told_the_legal_ones(served: Served) -> None:
    with pytest.raises(openai.NotFoundError, match="expected expert-0, expert-1"):
        served.text(0, name="expert-99")
    answer = served.http.get("/v2/models/none")
    assert answer.status_code == 404 and ALIAS in answer.json()["error"]


def test_load_and_unload_by_the_inference_protocol(served: Served) -> None:
    with triton_http.InferenceServerClient(str(served.http.base_url)[7:].rstrip("/")) as triton:
        triton.load_model("expert-7")
        assert triton.is_model_ready("expert-7")
        assert served.states()["expert-7"] == "Live"
        triton.unload_model("expert-7")
        assert served.states()["expert-7"] == "Offline"
        index = {each["name"]: each for each in triton.get_model_repository_index()}
        assert index["expert-7"]["state"] == "UNAVAILABLE" and len(index) == EXPERTS
        assert triton.get_model_metadata("expert-7")["properties"]["configuration"] == "tiny"
    assert served.text(7)[0] == served.gold(7)  # a request loads it again
    body = {"items": [{"id": "a", "value": "hello"}], "params": {"select_expert": ALIAS, "max_tokens_to_generate": 2}}
    assert served.http.post("/api/v2/predict/generic/any/expert-5", json=body).status_code == 200


def test_who_waits_too_many_is_told_when_to_come_again(served: Served) -> None:
    body = {"model": "expert-9", "prompt": "a", "max_tokens": 100, "temperature": 0, "ignore_eos": True}
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: served.http.post("/v1/completions", json=body), range(16)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused and all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert len({answer.json()["choices"][0]["text"] for answer in answers if answer.status_code == 200}) == 1


@pytest.mark.long
def test_a_caller_of_a_stream_that_leaves_before_its_first_token_waits_no_more(served: Served) -> None:
    name = "nv_inference_pending_request_count"
    body = {"model": "expert-0", "prompt": "a", "max_tokens": 100, "stream": True}
    stopped = served.processes()
    for process in stopped:
        os.kill(process, signal.SIGSTOP)
    try:
        for path in ("completions", "chat/completions"):
            chat = {**body, "messages": [{"role": "user", "content": "a"}]}
            del chat["prompt"]
            with (
                ThreadPoolExecutor(1) as pool,
                # Its connection ends when its read does.
                httpx.Client(base_url=served.http.base_url, timeout=5.0, trust_env=False) as caller,
            ):
                asked = caller.build_request("POST", f"/v1/{path}", json=body if path == "completions" else chat)
                answer = pool.submit(caller.send, asked)
                wait_until(lambda: served.metric(name)["expert-0"] == 1)
                caller.close()
                wait_until(lambda: served.metric(name)["expert-0"] == 0)
                assert isinstance(answer.exception(), httpx.HTTPError)
    finally:
        for process in stopped:
            with suppress(ProcessLookupError):  # it was one of an earlier test's that was ending
                os.kill(process, signal.SIGCONT)


@pytest.mark.long
def test_no_request_is_lost_when_the_process_is_killed(served: Served) -> None:
    reasons: list[str] = []

    def ask_until_answered(expert: int) -> bytes:
        for _ in range(20):
            try:
                return served.text(expert)[0]
            except openai.InternalServerError as error:
                reasons.append(str(error))
        raise AssertionError("no answer")

    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(ask_until_answered, expert) for expert in range(EXPERTS)]
        found[2].result()
        os.kill(served.processes()[0], signal.SIGKILL)
        for expert, text in enumerate(found):
            assert text.result() == served.gold(expert)
    assert all("process was killed by SIGKILL" in reason for reason in reasons)  # of texts that were being made
    wait_until(lambda: served.states()["expert-0"] == "Live")  # pinned: it comes back by itself
    wait_until(lambda: served.http.get("/v2/health/ready").status_code == 200)


def test_a_box_serves_a_bundle_instead_of_its_model(served: Served, tmp_path: Path) -> None:
    values = {"RDUKIT_BOX_BUNDLE": str(served.file), "RDUKIT_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    box = start_box(BoxSpec("llama", tmp_path / "state", [], values))
    try:
        body = {"model": ALIAS, "prompt": prompt_of(3), "max_tokens": MADE, "temperature": 0}
        answer = httpx.post(f"{box.rest_url}/v1/completions", json=body, trust_env=False, timeout=60).json()
        assert answer["model"] == "expert-3" and answer["usage"]["emulated_switch"]["bytes"] > 0
        assert "rdukit_box_expert_state" in httpx.get(f"{box.rest_url}/metrics", trust_env=False).text
    finally:
        box.stop()


def test_a_router_chooses_an_expert_for_requests_that_name_none(served: Served) -> None:
    def answered(prompt: str, model: str = "router") -> str:
        messages: Any = [{"role": "user", "content": prompt}]
        return str(served.client.chat.completions.create(model=model, messages=messages, max_tokens=1).model)

    assert [answered(text) for text in ("Sum these numbers", "Write a poem on rain")] == ["expert-4", "expert-5"]
    assert answered("Write a poem on rain", "expert-1") == "expert-1"
    assert served.client.responses.create(model="router", input="numbers", max_output_tokens=1).model == "expert-4"
    assert served.client.models.list().data[-1].id == "router"
    with pytest.raises(openai.BadRequestError, match="name an expert as its model"):
        served.client.completions.create(model="router", prompt=[1, 2], max_tokens=1)
