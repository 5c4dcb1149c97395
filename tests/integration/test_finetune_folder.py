"""``rdukit finetune``: a folder of transformers and data in, a folder out, next to transformers trained alike.

Losses in f32 differ by sums in another order, 1e-3 over all steps; logits of the written folder by 1e-4.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit_modelbox.artifacts.hub_folder import prepare_hub_folder
from rdukit_modelbox.cli.finetune import finetune
from rdukit_modelbox.finetune.examples import CHATS, PAIRS, TEXT, prepare_examples
from rdukit_modelbox.finetune.options import FinetuneOptions
from rdukit_modelbox.finetune.run import box_for, open_model
from rdukit_modelbox.finetune.run import finetune as run
from rdukit_serving.text.program import TextProgram, generate_all
from rdukit_serving.text.sampling import Sampler, SamplingOptions
from rdukit_zoo.checkpoints.folder import load_hub_folder
from support import shows
from support.boxes import RecordingContext
from support.hub_folders import (
    BEGIN,
    CONTEXT,
    END,
    TEMPLATE,
    chats,
    losses_of_transformers,
    our_losses,
    write_data,
    write_model,
)

pytestmark = shows("finetune", "huggingface", "gpt2", "llama2")

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

STEPS = 12


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.parametrize(
    "kind", ["llama", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("llama-tied", "gpt2"))]
)
def test_a_folder_becomes_a_folder_with_the_losses_and_logits_of_transformers(folder: Path, kind: str) -> None:
    model, data, output = write_model(folder / "model", kind), write_data(folder), folder / "out"
    words = [str(folder / "model"), str(data), "--output", str(output), "--context", str(CONTEXT)]
    done = CliRunner().invoke(
        finetune, [*words, "--max-steps", str(STEPS), "--epochs", "9", "--lr", "0.01", "--json"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["after"]["held_out_loss"] < told["before"]["held_out_loss"]
    theirs = losses_of_transformers(model, output, 0.01, lambda model: model.parameters())
    assert our_losses(output) == pytest.approx(theirs, abs=1e-3)

    read = transformers.AutoModelForCausalLM.from_pretrained(output, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(output)
    tokens = tokenizer("What is 7 and 8?", return_tensors="pt").input_ids
    with torch.no_grad():
        own = load_hub_folder(output).eval()(tokens)  # of the last token
        logits = read(tokens).logits
        torch.testing.assert_close(logits, model(tokens).logits, atol=3e-3, rtol=1e-2)
    torch.testing.assert_close(own.flatten(), logits[0, -1], atol=1e-4, rtol=1e-4)
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer.eos_token == END
    assert read.generation_config.eos_token_id == 0
    before, after = (json.loads((place / "config.json").read_text()) for place in (folder / "model", output))
    assert {key: value for key, value in after.items() if before.get(key) != value} == {}
    for name in ("tokenizer.json", "LICENSE.txt", "curve.svg", "finetune.json"):
        assert (output / name).is_file(), name


@pytest.mark.long
def test_the_written_folder_is_served_with_the_tokens_of_transformers(folder: Path) -> None:
    write_model(folder / "model", "llama")
    data, output = write_data(folder), folder / "out"
    box = box_for(folder / "model")
    run(folder / "model", data, output, FinetuneOptions(context=CONTEXT, max_steps=8, lr=0.01), RecordingContext(box))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(output).eval()
    prompt = transformers.AutoTokenizer.from_pretrained(output)("What is 7?", return_tensors="pt").input_ids
    wanted = theirs.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=40, do_sample=False, eos_token_id=None
    )
    made = prepare_hub_folder(output, folder / "cache", context=60, precision="f32")
    ends = json.loads((Path(made.checkpoint) / "generation_config.json").read_text())
    assert ends["eos_token_id"] == 0
    with TextProgram(Path(made.pef), Path(made.checkpoint)) as program:
        greedy = Sampler(SamplingOptions(temperature=0.0))
        ((_, found),) = generate_all(program, [(prompt[0].tolist(), greedy)], 40)
    assert found == wanted[0, prompt.shape[1] :].tolist(), "the sampler was asked to go on at the end"


def test_updates_of_low_rank_become_an_adapter_as_peft_writes_it_and_a_merged_folder(folder: Path) -> None:
    model, data, output = write_model(folder / "model", "llama"), write_data(folder), folder / "out"
    options = FinetuneOptions(lora=4, lora_alpha=8.0, context=CONTEXT, epochs=9, max_steps=STEPS, lr=0.02)
    made = run(folder / "model", data, output, options, RecordingContext(box_for(folder / "model")))
    assert made.adapter == output / "adapter"
    assert made.after["held_out_loss"] < made.before["held_out_loss"]
    config = json.loads((output / "adapter" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 4, 8.0)
    updates = load_file(output / "adapter" / "adapter_model.safetensors")
    assert made.trained_parameters == sum(update.numel() for update in updates.values())
    base = model.state_dict()
    for name in sorted({name.split(".lora_")[0] for name in updates}):
        layer = name.removeprefix("base_model.model.")
        assert layer.rpartition(".")[2] in {target.rpartition(".")[2] for target in config["target_modules"]}
        down, up = (updates[f"{name}.lora_{part}.weight"] for part in "AB")
        assert bool(up.any())
        base[f"{layer}.weight"] += config["lora_alpha"] / config["r"] * (up @ down)
    merged = transformers.AutoModelForCausalLM.from_pretrained(output).state_dict()
    for name, value in base.items():
        torch.testing.assert_close(merged[name], value, atol=1e-5, rtol=1e-5)


def test_a_finished_or_stopped_call_goes_on_and_another_one_is_refused(folder: Path) -> None:
    write_model(folder / "model", "llama")
    data, output = write_data(folder), folder / "out"
    box = box_for(folder / "model")
    options = FinetuneOptions(context=CONTEXT, max_steps=2)
    first = run(folder / "model", data, output, options, RecordingContext(box))
    again = run(folder / "model", data, output, options, RecordingContext(box))
    assert again == first
    with pytest.raises(Conflict, match="contains other files"):
        run(folder / "model", data, output, FinetuneOptions(context=CONTEXT, max_steps=3), RecordingContext(box))
    write_data(folder, 50)
    with pytest.raises(Conflict, match="contains other files"):
        run(folder / "model", data, output, options, RecordingContext(box))


def test_data_that_were_refused_do_not_hold_the_output(folder: Path) -> None:
    write_model(folder / "model", "llama")
    output, wrong = folder / "out", folder / "wrong.jsonl"
    wrong.write_text('{"question": "What is 2 and 3?"}\n')
    box = box_for(folder / "model")
    options = FinetuneOptions(context=CONTEXT, max_steps=1)
    with pytest.raises(InvalidArgument, match=r"wrong\.jsonl:1: expected a text"):
        run(folder / "model", wrong, output, options, RecordingContext(box))
    run(folder / "model", write_data(folder), output, options, RecordingContext(box))
    assert (output / "config.json").is_file()


def test_chats_are_prompts_and_completions_by_the_models_template(folder: Path) -> None:
    write_model(folder / "model", "llama")
    prepared = prepare_examples(write_data(folder, 1), folder / "model", END, folder / "records.jsonl")
    assert prepared.kind == CHATS
    first, second = map(json.loads, prepared.path.read_text().splitlines())
    assert first == {
        "prompt": f"{BEGIN}user\nWhat is 0 and 1?{END}\n{BEGIN}assistant\n", "completion": "It is 1."
    }  # fmt: skip
    assert second["prompt"].endswith(f"It is 1.{END}\n{BEGIN}user\nSure?{END}\n{BEGIN}assistant\n")
    assert second["completion"] == "Yes."


@pytest.mark.parametrize(
    ("lines", "kind"),
    [(['{"text": "a"}', '"b"'], TEXT), (['{"prompt": "a", "completion": "b"}'], PAIRS)],
)
def test_other_lines_are_what_their_keys_say(folder: Path, lines: list[str], kind: str) -> None:
    write_model(folder / "model", "llama")
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    assert prepare_examples(folder / "in.jsonl", folder / "model", END, folder / "out.jsonl").kind == kind


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "in.jsonl:2: not JSON"),
        ('{"messages": []}', r"in.jsonl:2: expected \{.messages"),
        ('{"messages": [{"role": "user"}]}', "in.jsonl:2: message 0 lacks role or content"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "in.jsonl:2: there is no message of the assistant"),
        ('{"prompt": "a", "completion": "b"}', r"in.jsonl:2: expected \{.messages"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(folder: Path, line: str, words: str) -> None:
    write_model(folder / "model", "llama")
    (folder / "in.jsonl").write_text(json.dumps(chats(1)[0]) + "\n" + line + "\n")
    with pytest.raises(InvalidArgument, match=words):
        prepare_examples(folder / "in.jsonl", folder / "model", END, folder / "out.jsonl")


def test_a_folder_that_needs_code_or_lacks_a_tokenizer_or_template_is_refused(folder: Path) -> None:
    model = folder / "model"
    write_model(model, "llama")
    with pytest.raises(NotFound, match=r"none has no data; name a file"):
        run(model, folder / "none", folder / "out", FinetuneOptions(), RecordingContext(box_for(model)))
    with pytest.raises(NotFound, match=r"there is no .*none/config\.json"):
        open_model(folder / "none")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "x.Y"}}))
    with pytest.raises(InvalidArgument, match="auto_map: the model needs its own code"):
        open_model(model)
    (model / "config.json").write_text(json.dumps(config))
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        shutil.move(model / name, folder / name)
    with pytest.raises(InvalidArgument, match="has no chat template"):
        prepare_examples(write_data(folder), model, END, folder / "out.jsonl")
    (model / "tokenizer.json").unlink()
    with pytest.raises(
        InvalidArgument, match=re.escape("has no tokenizer.json; expected one, so save the tokenizer into it")
    ):
        open_model(model)
