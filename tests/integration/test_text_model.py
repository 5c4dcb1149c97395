"""A language model from text to generated text: trained with one PEF, served with another, held against plain torch."""

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument, NotFound, PefMismatch
from rdukit_modelbox.training.checkpoints import load_checkpoint
from rdukit_serving.text.generation_config import end_tokens
from rdukit_serving.text.loop import TextLoop, read_tokens, tokenizer_file
from rdukit_serving.text.program import TextProgram, generate_all
from rdukit_serving.text.sampling import Sampler, SamplingOptions
from rdukit_zoo.language.decoder import generate_by_recomputing
from rdukit_zoo.language.llama import Llama, LlamaSizes
from support import shows
from support.boxes import run_verb

pytestmark = shows("llama", "training", "inference", "precision")

TINY = {
    "width": 16, "layers": 2, "heads": 4, "key_value_heads": 2, "feed_forward": 24, "vocabulary": 300,
    "context_length": 24, "prompt_length": 8, "precision": "f32",
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """PEFs to train and to serve, a data set, and a checkpoint of a short training."""
    folder = tmp_path_factory.mktemp("text")
    lines = [{"prompt": f"{i} and {j}:", "completion": f"{i + j}"} for i in range(12) for j in range(12)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = run_verb(
        "llama", "preprocess", folder / "data", {"data": folder / "sums.jsonl"}, max_seq_length=24,
        input_packing_config="greedy::drop", dev_ratio=0.1,
    ).outputs["dataset"]  # fmt: skip
    serve = run_verb("llama", "compile", folder / "serve", purpose="serve", batch_size=2, **TINY).outputs["pef"]
    with pytest.MonkeyPatch.context() as patch:  # native training is `test_fast_paths`'s
        patch.setenv("RDUKIT_KERNELS", "portable")
        train = run_verb("llama", "compile", folder / "train", purpose="train", batch_size=4, **TINY).outputs["pef"]
        done = run_verb(
            "llama", "train", folder / "run", {"pef": train, "dataset": data}, max_steps=60, epochs=99, lr=0.03
        )  # fmt: skip
    checkpoint = done.outputs["checkpoint"]
    return {"dataset": data, "train": train, "serve": serve, "checkpoint": checkpoint, "folder": folder}


def infer(made: dict[str, Path], purpose: str, name: str, **parameters: Any) -> dict[str, Any]:
    inputs = {"pef": made[purpose], "dataset": made["dataset"], "checkpoint": made["checkpoint"]}
    if "prompts" in made:
        inputs["prompts"] = made["prompts"]
    done = run_verb("llama", "infer", made["folder"] / name, inputs, **parameters)
    file = done.outputs.get("predictions")
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file is not None else None
    return {**done.figures, "lines": lines, "report": json.loads(done.outputs["report"].read_text())}


def plain_torch(made: dict[str, Path]) -> Llama:
    """The model without device and cache, with the trained weights."""
    sizes = LlamaSizes(
        width=16, layers=2, heads=4, key_value_heads=2, feed_forward=24, vocabulary=300, context_length=24,
        prompt_length=8,
    )  # fmt: skip
    model = Llama(sizes, texts=0)
    model.load_state_dict(dict(load_checkpoint(made["checkpoint"]).parameters))
    return model


@pytest.mark.long
def test_both_pefs_give_a_data_set_the_same_perplexity(made: dict[str, Path]) -> None:
    by_batches, by_tokens = (infer(made, purpose, purpose, limit=3) for purpose in ("train", "serve"))
    assert by_batches["samples"] == by_tokens["samples"] == 3
    # f32, sums in another order.
    assert by_tokens["loss"] == pytest.approx(by_batches["loss"], rel=1e-4)
    assert by_batches["perplexity"] < 100
    assert by_batches["report"]["perplexity"] == by_batches["perplexity"]
    assert by_batches["lines"] is None


def test_a_text_as_a_vector_is_the_mean_of_the_last_layer(made: dict[str, Path]) -> None:
    model, tokens = plain_torch(made), [5, 6, 7, 5, 9]
    with torch.no_grad():
        expected = model.read(torch.tensor([tokens])).mean(1)[0]
    with TextProgram(made["serve"], made["checkpoint"]) as program:
        before = program.start(tokens)
        # f32, sums in another order.
        torch.testing.assert_close(torch.from_numpy(program.embed(tokens)), expected, rtol=1e-4, atol=1e-5)
        assert (program.start(tokens) == before).all()
        # The mask of tokens that the tokenizer lacks is for logits only.
        program._known = 3
        assert torch.from_numpy(program.embed(tokens)).isfinite().all()
        with pytest.raises(InvalidArgument, match="has 9 tokens; expected 1 to 8"):
            program.embed([5] * 9)


def test_greedy_texts_are_those_of_plain_torch_for_prompts_shorter_and_longer_than_compiled(
    made: dict[str, Path],
) -> None:
    model, ends = plain_torch(made), end_tokens(made["checkpoint"])
    with TextProgram(made["serve"], made["checkpoint"]) as program:
        for size in (3, 8, 13, 1):
            torch.manual_seed(size)
            prompt = torch.randint(257, (1, size))
            gold = generate_by_recomputing(model, prompt, 10)
            gold = gold[: next((place for place, token in enumerate(gold) if token in ends), 10)]
            greedy = Sampler(SamplingOptions(temperature=0.0))
            assert list(generate_all(program, [(prompt[0].tolist(), greedy)], 10, ends)) == [(0, gold)]
        # More texts than rows, at once: each is what it is alone, but for last bits that choose no other token.
        prompts = [[place % 257 for place in range(number, 3 * number + 1)] for number in range(9)]
        found = dict(generate_all(program, ((prompt, greedy) for prompt in prompts), 6, ends))
        assert found == {
            number: dict(generate_all(program, [(prompts[number], greedy)], 6, ends))[0] for number in range(9)
        }
        ((_, full),) = generate_all(program, [([1] * 20, Sampler(SamplingOptions(seed=1)))], 99)
        assert len(full) <= 5  # the last token needs no place in the cache
        assert max(full) < 257  # tokens that the tokenizer lacks are never chosen


@pytest.mark.long
def test_without_a_precision_a_model_trains_in_f32_and_serves_in_bf16(made: dict[str, Path]) -> None:
    chosen = {name: value for name, value in TINY.items() if name != "precision"}
    precisions = {}
    for purpose in ("train", "serve"):
        done = run_verb("llama", "compile", made["folder"] / f"auto-{purpose}", purpose=purpose, batch_size=2, **chosen)
        precisions[purpose] = done.figures["precision"]
    assert precisions == {"train": "f32", "serve": "bf16"}
    whole = infer(made, "serve", "f32", limit=20)
    rounded = infer({**made, "serve": done.outputs["pef"]}, "serve", "bf16", limit=20)
    assert rounded["perplexity"] == pytest.approx(whole["perplexity"], rel=0.02)
    assert rounded["perplexity"] != whole["perplexity"]


@pytest.mark.long
def test_weights_of_a_byte_each_cost_little_perplexity(made: dict[str, Path]) -> None:
    pef = run_verb(
        "llama", "compile", made["folder"] / "int8", purpose="serve", batch_size=2, weight_dtype="int8", **TINY
    ).outputs["pef"]  # fmt: skip
    whole = infer(made, "serve", "whole", limit=20)
    rounded = infer({**made, "serve": pef}, "serve", "rounded", limit=20)
    assert rounded["perplexity"] == pytest.approx(whole["perplexity"], rel=0.02)
    assert rounded["perplexity"] != whole["perplexity"]
    model = plain_torch(made)
    with TextProgram(pef, made["checkpoint"]) as program, torch.no_grad():
        # int8 has two digits of a weight.
        torch.testing.assert_close(
            torch.from_numpy(program.embed([5, 6])), model.read(torch.tensor([[5, 6]])).mean(1)[0], rtol=0.05, atol=0.05
        )


def test_prompts_of_a_file_or_of_the_data_set_are_continued_the_same_way_again(made: dict[str, Path]) -> None:
    prompts = made["folder"] / "prompts.jsonl"
    prompts.write_text('{"prompt": "3 and 4:"}\n{"prompt": "10 and 1:"}\n')
    asked = {**made, "prompts": prompts}
    options = {"figure": "continuations", "temperature": 0.8, "top_p": 0.9, "max_tokens": 5}
    first, again = infer(asked, "serve", "first", **options), infer(asked, "serve", "again", **options)
    assert [line["prompt"] for line in first["lines"]] == ["3 and 4:", "10 and 1:"]
    assert first["lines"] == again["lines"]
    assert first["tokens"] == sum(len(line["tokens"]) for line in first["lines"])
    own = infer(made, "serve", "own", figure="continuations", limit=2, max_tokens=3)
    assert len(own["lines"]) == 2 and all(line["prompt"].endswith(":") for line in own["lines"])
    prompts.write_text('{"prompt": "1"}\n{"text": "2"}\n')
    with pytest.raises(InvalidArgument, match='line 2: expected an object with the key "prompt"'):
        infer(asked, "serve", "bad", figure="continuations")
    prompts.write_text('{"prompt": "short"}\n{"prompt": "%s"}\n' % ("long " * 9))
    with pytest.raises(InvalidArgument, match="prompt 2 has 45 tokens; expected 1 to 23"):
        infer(asked, "serve", "bad", figure="continuations")
    with pytest.raises(InvalidArgument, match="figure=continuations needs one compiled with purpose=serve"):
        infer(made, "train", "bad", figure="continuations")


def test_what_a_text_program_cannot_do_is_refused_with_what_is_legal(
    made: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    with TextProgram(made["serve"], made["checkpoint"]) as program:
        for prompt, words in (([], "0 tokens; expected 1 to 23"), ([1] * 24, "24 tokens"), ([300], "token 300 is not")):
            with pytest.raises(InvalidArgument, match=words):
                program.start(prompt)
        with pytest.raises(InvalidArgument, match="position 24 is not valid; expected 0 to 23"):
            program.step(1, 24)
    with pytest.raises(PefMismatch, match="compile a text model with purpose=serve"):
        TextProgram(made["train"], made["checkpoint"])
    with pytest.raises(NotFound, match=r"no latest.json"):
        TextProgram(made["serve"], made["folder"])
    other = made["folder"] / "other"
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    pef = run_verb("llama", "compile", other, purpose="serve", batch_size=1, **{**TINY, "width": 32}).outputs["pef"]
    with pytest.raises(InvalidArgument, match=r"width: 16 in the checkpoint .*, 32 in the PEF"):
        TextProgram(pef, made["checkpoint"])


class OddProgram(TextProgram):
    """A program that fails, in a way that nobody thought of, at prompts with the token 7."""

    def read(
        self, row: int, tokens: Sequence[int], position: int, adapter: int | None = None
    ) -> NDArray[np.float32]:  # fmt: skip
        if 7 in tokens:
            raise ZeroDivisionError("not even a RuntimeFault")
        return super().read(row, tokens, position, adapter)


def test_a_text_that_fails_in_an_unknown_way_harms_no_other(made: dict[str, Path]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    body = {"kind": "generate", "max_tokens": 9, "stop": [], "top_logprobs": None, "echo": False, "is_rendered": False,
            "form": None, "keeps_special": False, "sampling": {"temperature": 0.0, "ignore_eos": True}}  # fmt: skip

    def ask(asked: dict[int, dict[str, Any]]) -> dict[int, Any]:
        for number, more in asked.items():
            ours.send(json.dumps({**body, "number": number, **more}).encode())
        ended: dict[int, Any] = {}
        while len(ended) < len(asked):
            events = json.loads(ours.recv(1 << 20))["events"]
            ended |= {each["number"]: each for each in events if each["kind"] in {"done", "refused"}}
        return ended

    with OddProgram(made["serve"], made["checkpoint"]) as program, ours, theirs:
        program.warm_up()
        ours.settimeout(120)
        file = tokenizer_file(made["checkpoint"])
        loop = TextLoop(theirs, program, read_tokens(file, made["checkpoint"], program))
        making = Thread(target=loop.serve, daemon=True)
        making.start()
        ended = ask({3: {"prompt": [1], "sampling": {"colour": 1}}, 1: {"prompt": [1, 2, 3]}, 2: {"prompt": [1, 7]}})
        assert (ended[1]["kind"], ended[1]["completion_tokens"]) == ("done", 9)
        told = [ended[number]["error"]["message"] for number in (2, 3)]
        assert [each.partition(";")[0].rpartition(" ")[2] for each in told] == ["ZeroDivisionError", "TypeError"]
        # Both rows are free again, and hold nothing of the text that failed.
        ended = ask({number: {"prompt": [1, 2, number]} for number in (4, 5)})
        assert [each["kind"] for each in ended.values()] == ["done", "done"]
        ours.send(json.dumps({"kind": "stop"}).encode())
        making.join()


def test_the_tokenizer_is_kept_beside_the_checkpoint(made: dict[str, Path]) -> None:
    kept = json.loads((made["checkpoint"] / "tokenizer.json").read_text())
    assert kept == json.loads((made["dataset"] / "tokenizer" / "tokenizer.json").read_text())
    assert end_tokens(made["checkpoint"]) == {256}
    assert end_tokens(made["folder"]) == frozenset()
