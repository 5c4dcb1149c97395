"""A router as a value: what it learns, what it chooses, what its file may be, which text of a request it looks at."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

from rdukit.errors import InvalidArgument, NotFound, Unavailable
from rdukit_serving.router.decision import FORMAT, NamedRouter, Router, load_router
from rdukit_serving.router.proxy import RouterDoor, ServedExpert, fetch_vectors
from rdukit_serving.router.training import LabelledPrompt, hold_out, judge, learn, read_examples
from rdukit_serving.router.word_vectors import routed_text, word_vector
from rdukit_zoo.kits.routing import PROMPTS
from support import shows

pytestmark = shows("kits")

SIZE = 1024


def learned(neighbours: int = 0) -> Router:
    examples = read_examples(PROMPTS)
    return learn([word_vector(each.prompt, SIZE) for each in examples], [e.expert for e in examples], neighbours)


@pytest.mark.parametrize("neighbours", [0, 5])
def test_a_router_chooses_for_texts_that_it_has_not_seen_and_its_file_is_the_same_each_time(
    neighbours: int, tmp_path: Path
) -> None:
    examples = read_examples(PROMPTS)
    known, held = hold_out(examples, 0.25, 3)
    assert len(held) == 36 and not set(known) & set(held)
    vectors, experts = [word_vector(e.prompt, SIZE) for e in examples], [e.expert for e in examples]
    trial = learn([vectors[at] for at in known], [experts[at] for at in known], neighbours)
    score = judge(trial, [vectors[at] for at in held], [experts[at] for at in held])
    # A third by chance; 0.8 to 0.9 of most parts that are held out.
    assert score.accuracy > 0.65 and score.right + sum(count for *_, count in score.confusions) == score.texts

    router = learned(neighbours)
    choice = router.choose("Why does my Python function return None?")
    assert choice.expert == "code" and 0.4 < choice.confidence <= 1
    versions = [router.save(tmp_path / name) for name in ("one", "other")]
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes() and versions[0] == versions[1]
    again, version = load_router(tmp_path / "one")
    assert version == versions[0] and again.choose("Why does my Python function return None?") == choice


def test_two_experts_are_as_sure_as_the_regression_says() -> None:
    router = learn([np.array(each, np.float32) for each in ((1, 0), (0, 1), (1, 0.1), (0.1, 1))], ["a", "b", "a", "b"])
    assert router.decide(np.array([1, 0], np.float32)).expert == "a"
    assert router.decide(np.array([0, 1], np.float32)).expert == "b"
    assert router.decide(np.array([1, 1], np.float32)).confidence == pytest.approx(0.5, abs=0.01)
    assert 0 < router.decide(np.zeros(2, np.float32)).confidence <= 1
    with pytest.raises(InvalidArgument, match="has 3 numbers; expected 2"):
        router.decide(np.zeros(3, np.float32))


def parts(**changed: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors and metadata of a legal router, with changes."""
    tensors = {
        "scale": np.ones(4, np.float32), "weights": np.ones((2, 4), np.float32), "bias": np.zeros(2, np.float32),
        "labels": np.zeros(0, np.int64),
    }  # fmt: skip
    described: dict[str, Any] = {"format": FORMAT, "experts": ["a", "b"], "neighbours": 0, "model": ""}
    tensors |= {key: value for key, value in changed.items() if key in tensors}
    described |= {key: value for key, value in changed.items() if key in described}
    return tensors, {"router": json.dumps(described)}


@pytest.mark.parametrize(
    "changed",
    [
        {"format": "other"}, {"experts": ["a"]}, {"experts": ["a", "a"]}, {"experts": [1, 2]}, {"experts": "ab"},
        {"weights": np.ones((3, 4), np.float32)}, {"weights": np.ones((2, 5), np.float32)},
        {"bias": np.zeros(3, np.float32)}, {"scale": np.full(4, np.nan, np.float32)},
        {"scale": np.ones(4, np.float64)}, {"neighbours": 1}, {"neighbours": 1, "labels": np.array([0, 2])},
        {"neighbours": 3, "labels": np.array([0, 1])}, {"neighbours": "1"},
    ],
)  # fmt: skip
def test_a_file_that_is_no_whole_router_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    save_file(*parts()[:1], tmp_path / "legal", parts()[1])
    assert load_router(tmp_path / "legal")[0].experts == ("a", "b")
    tensors, metadata = parts(**changed)
    save_file(tensors, tmp_path / "wrong", metadata)
    with pytest.raises(InvalidArgument, match="rdukit router train writes one"):
        load_router(tmp_path / "wrong")


def test_numbers_of_any_size_give_a_choice_and_what_is_no_number_none(tmp_path: Path) -> None:
    huge = np.full((2, 4), 3e38, np.float32)
    tensors, metadata = parts(weights=huge * np.array([[1], [0.5]], np.float32), scale=huge[0])
    save_file(tensors, tmp_path / "huge", metadata)
    router, _ = load_router(tmp_path / "huge")
    choice = router.decide(np.full(4, 3e38, np.float32))
    assert (choice.expert, choice.confidence) == ("a", 1.0)
    with pytest.raises(InvalidArgument, match="NaN or infinite"):
        router.decide(np.array([1, 2, np.nan, 3], np.float32))


@pytest.mark.parametrize(
    "vectors",
    [[], [[1.0, 2.0], [1.0, 2.0]], [[[1.0]]], [["x"]], [[1e39, 0.0]]],
    ids=["none", "two", "deep", "text", "inf"],
)
def test_a_server_of_vectors_that_gives_none_is_told_of(vectors: list[Any]) -> None:
    answer = {"data": [{"embedding": each} for each in vectors]}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=answer))

    async def fetch() -> None:
        async with httpx.AsyncClient(transport=transport) as client:
            await fetch_vectors(client, "http://vectors/v1", "model", ["text"], {})

    with pytest.raises(Unavailable, match=r"http://vectors/v1/embeddings gave no vectors of 'model'"):
        asyncio.run(fetch())


def test_a_text_that_is_refused_as_too_long_has_the_vector_of_its_beginning() -> None:
    def embed(request: httpx.Request) -> httpx.Response:
        texts = json.loads(request.content)["input"]
        is_legal = all(0 < len(text) <= 16 for text in texts)
        data = [{"embedding": [float(len(text)), float(ord(text[0]))]} for text in texts]
        return httpx.Response(200 if is_legal else 400, json={"data": data})

    async def fetch(*texts: str) -> list[list[float]]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(embed)) as client:
            found = await fetch_vectors(client, "http://vectors/v1", "model", texts, {})
        return [vector.tolist() for vector in found]

    assert asyncio.run(fetch("a" * 100, "b", "c" * 16)) == [[12, 97], [1, 98], [16, 99]]


def test_names_that_no_header_can_have_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="'ä' is not a valid name"):
        RouterDoor(NamedRouter("router", learned()), [
            ServedExpert(name, "http://x/v1") for name in (*learned().experts, "ä")])  # fmt: skip


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    deep = b"[" * 100_000
    for content in (
        b"",
        len(deep).to_bytes(8, "little") + deep,
        b"x" * 100,
        b"\xff" * 8,
        (1 << 40).to_bytes(8, "little") + b"{}",
    ):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(InvalidArgument, match="is not a router"):
            load_router(tmp_path / "file")
    with pytest.raises(NotFound, match="cannot be read"):
        load_router(tmp_path / "nothing")


def test_labelled_texts_are_read_by_line_and_equal_ones_count_once(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": "One  two", "expert": "a"},
        {"prompt": "One two", "expert": "b"},
        {"prompt": "x\u2028y", "expert": "b"},
    ]
    file.write_text("\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines))
    assert read_examples(file) == [LabelledPrompt("One  two", "a"), LabelledPrompt("x\u2028y", "b")]
    for wrong, words in (
        ('{"prompt": "x"}', "line 1"),
        ("[]", "line 1"),
        ("{", "line 1"),
        ("", "fewer than two experts"),
    ):
        file.write_text(wrong)
        with pytest.raises(InvalidArgument, match=words):
            read_examples(file)


def test_the_text_that_decides_is_what_the_user_said_last() -> None:
    def said(role: str, content: Any) -> dict[str, Any]:
        return {"role": role, "content": content}

    chat = [said("system", "s"), said("user", "first"), said("assistant", "a"), said("user", "last"), said("tool", "t")]
    assert routed_text({"messages": chat}) == "last"
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert routed_text({"messages": [said("user", parts)]}) == "one\ntwo"
    results = [{"type": "tool_result", "tool_use_id": "1", "content": "x"}]
    assert routed_text({"messages": [said("user", "asked"), said("user", results)]}) == "asked"
    assert routed_text({"input": "plain"}) == "plain"
    assert routed_text({"input": [said("user", [{"type": "input_text", "text": "item"}])]}) == "item"
    assert routed_text({"prompt": "p"}) == routed_text({"prompt": ["p", "q"]}) == "p"
    for nothing in (
        {},
        {"messages": []},
        {"prompt": [1, 2]},
        {"messages": [said("user", None)]},
        {"messages": "", "input": 3},
    ):
        with pytest.raises(InvalidArgument, match="name an expert as its model"):
            routed_text(nothing)
