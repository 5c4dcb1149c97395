"""Folders that transformers wrote: loaded, written back byte for byte, and served, with transformers' own answers.

In f32; logits within 1e-5 and gradients within 1e-4 cover sums in another order.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rdukit.errors import InvalidArgument, NotFound
from rdukit.pef import read_pef
from rdukit_modelbox.artifacts.hub_folder import compile_hub_folder, prepare_hub_folder
from rdukit_platform.backends.process_tree import tree_of
from rdukit_serving.text.program import TextProgram, generate_all
from rdukit_serving.text.sampling import Sampler, SamplingOptions
from rdukit_zoo.checkpoints.folder import load_hub_folder, open_hub_folder, save_hub_folder
from support import first_short, shows
from support.helpers import wait_until
from support.pages import code_blocks, read_page

pytestmark = shows("huggingface", "box", "gpt2", "bloom", "falcon", "llama2", "llama3", "mistral", "deepseek-coder")

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

WORDS = 97
_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": WORDS}
_LLAMA = _SMALL | {"intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 64}
_STRETCHED = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16, "rope_theta": 500000.0,
}  # fmt: skip
_NEOX = _SMALL | {"intermediate_size": 48, "max_position_embeddings": 64}


def config(name: str, **values: Any) -> Any:
    ends = {"bos_token_id": 0, "eos_token_id": 96, "pad_token_id": 1}
    return getattr(transformers, name)(**ends, **values)


#: Family and size → the configuration of a small random model of it.
CONFIGS: dict[str, Callable[[], Any]] = {
    "bloom": lambda: config("BloomConfig", hidden_size=48, n_layer=2, n_head=6, vocab_size=WORDS),
    "bloom-8": lambda: config("BloomConfig", hidden_size=64, n_layer=1, n_head=8, vocab_size=WORDS),
    "falcon-7b": lambda: config("FalconConfig", **_SMALL),
    "falcon-40b": lambda: config(
        "FalconConfig", **_SMALL, num_kv_heads=2, new_decoder_architecture=True, bias=False
    ),
    "gpt2": lambda: config("GPT2Config", n_embd=32, n_layer=2, n_head=4, vocab_size=WORDS, n_positions=64),
    "gpt2-inner": lambda: config(
        "GPT2Config", n_embd=24, n_layer=1, n_head=2, n_inner=40, vocab_size=WORDS, n_positions=48
    ),
    "llama-2": lambda: config("LlamaConfig", **_LLAMA),
    "llama-3.1": lambda: config("LlamaConfig", **_LLAMA, rope_parameters=_STRETCHED, tie_word_embeddings=True),
    "deepseek-coder": lambda: config(
        "LlamaConfig", **_LLAMA, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 100000.0}
    ),
    "mistral": lambda: config("MistralConfig", **_LLAMA, sliding_window=5),
    "mistral-head": lambda: config("MistralConfig", **_LLAMA, head_dim=16, sliding_window=None),
    "neox": lambda: config("GPTNeoXConfig", **_NEOX),
    "neox-serial": lambda: config("GPTNeoXConfig", **_NEOX, use_parallel_residual=False, hidden_act="gelu_fast"),
}  # fmt: skip


def write_folder(folder: Path, name: str, **options: Any) -> Any:
    """Write a random model's folder, and return the model of transformers."""
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation="eager").eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder, **options)
    return model


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what is compiled is kept: equal folders in equal precision are compiled once."""
    return tmp_path_factory.mktemp("cache")


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return {key: value for path in folder.glob("*.safetensors") for key, value in load_file(path).items()}


@pytest.mark.parametrize("name", first_short(CONFIGS, 3))
def test_a_folder_loads_computes_the_same_and_is_written_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    theirs = write_folder(tmp_path / "theirs", name)
    ours: Any = load_hub_folder(tmp_path / "theirs").eval()
    # Not 1: transformers' embeddings keep no gradient for the token of padding.
    tokens, labels = torch.randint(2, WORDS, (2, 20)), torch.randint(WORDS, (2, 20))
    logits = theirs(tokens).logits
    torch.testing.assert_close(ours.logits(tokens), logits, rtol=1e-5, atol=1e-5)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    found = ours(tokens, labels)
    found.backward()
    torch.testing.assert_close(found, loss, rtol=1e-5, atol=1e-5)
    gradients = {key: value.grad for key, value in theirs.named_parameters()}
    folder = open_hub_folder(tmp_path / "theirs")
    for key, parameter in ours.named_parameters():
        assert parameter.grad is not None
        wanted = gradients.get(key, gradients.get("lm_head.weight"))
        torch.testing.assert_close(folder.hub.convert(key, parameter.grad), wanted, rtol=1e-4, atol=1e-4)
    save_hub_folder(ours, folder.entry, folder.sizes, tmp_path / "ours")
    one, other = stored(tmp_path / "theirs"), stored(tmp_path / "ours")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) and one[key].dtype == other[key].dtype for key in one)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    torch.testing.assert_close(again(tokens).logits, logits, rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("number", first_short([signal.SIGINT, signal.SIGTERM]), ids=["ctrl-c", "terminate"])
def test_a_first_compile_ends_with_who_asked_for_it(number: signal.Signals, tmp_path: Path) -> None:
    write_folder(tmp_path / "theirs", "gpt2-inner")  # of one layer
    environment = {**os.environ, "RDUKIT_HOME": str(tmp_path / "home"), "RDUKIT_KERNELS": "native"}
    environment["RDUKIT_COMPILE_ROUTES"] = "bf16=native,f32=blas"  # not measured first
    command = [Path(sys.executable).with_name("rdukit"), "box", "run", "--checkpoint", tmp_path / "theirs"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        pids: list[int] = []

        def has_started() -> bool:
            assert running.poll() is None, running.stderr and running.stderr.read()
            pids[:] = [facts.pid for facts in tree_of(running.pid)]
            return any("native_worker" in words_of(pid) for pid in pids)

        wait_until(has_started, what="kernels are compiled")
        running.send_signal(number)
        assert running.wait(30) == (-number if number is signal.SIGTERM else 130)
    wait_until(lambda: not any(words_of(pid) for pid in pids), what="all processes of the compile have ended")


def words_of(pid: int) -> str:
    """Return the command of a process; "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").replace("\0", " ")
    except OSError:
        return ""


@pytest.mark.parametrize("name", first_short(["gpt2", "bloom", "falcon-7b", "llama-3.1", "mistral", "neox"]))
def test_a_folder_is_served_with_the_tokens_of_transformers(
    name: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    theirs = write_folder(tmp_path / "theirs", name)
    made = prepare_hub_folder(tmp_path / "theirs", cache, context=48, precision="f32")
    assert prepare_hub_folder(tmp_path / "theirs", cache, context=48, precision="f32") == made
    served = Path(made.checkpoint)
    file = served.stat().st_ino
    # Another process that began before leaves what may be served by now.
    assert compile_hub_folder(tmp_path / "theirs", served.parent, 48, "f32") == made and served.stat().st_ino == file
    with TextProgram(Path(made.pef), Path(made.checkpoint)) as program:
        for size in (3, 12):
            prompt = torch.randint(2, WORDS - 1, (1, size))
            wanted = theirs.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=10, do_sample=False, eos_token_id=None
            )
            logits = torch.from_numpy(program.start(prompt[0].tolist()).copy())
            torch.testing.assert_close(logits, theirs(prompt).logits[0, -1], rtol=1e-5, atol=1e-5)
            greedy = Sampler(SamplingOptions(temperature=0.0))
            ((_, found),) = generate_all(program, [(prompt[0].tolist(), greedy)], 10)
            assert found == wanted[0, size:].tolist()


@pytest.mark.long
def test_a_folder_is_served_in_bf16_unless_another_precision_is_asked_for(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    theirs = write_folder(tmp_path / "theirs", "llama-3.1")
    made = prepare_hub_folder(tmp_path / "theirs", cache, context=48)
    assert made != prepare_hub_folder(tmp_path / "theirs", cache, context=48, precision="f32")
    assert read_pef(Path(made.pef)).pef.precision == "bf16"
    prompt = torch.randint(2, WORDS - 1, (1, 12))
    exact = theirs(prompt).logits[0, -1]
    theirs.bfloat16()
    spread = (theirs(prompt).logits[0, -1].float() - exact).abs().max()
    with TextProgram(Path(made.pef), Path(made.checkpoint)) as program:
        logits = torch.from_numpy(program.start(prompt[0].tolist()).copy())
    # As far from f32 as torch's own bf16 is.
    assert 0 < (logits - exact).abs().max() < 2 * spread


def test_shards_old_pickles_and_old_names_are_read(tmp_path: Path) -> None:
    theirs = write_folder(tmp_path / "shards", "gpt2", max_shard_size="30KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    tokens = torch.randint(WORDS, (1, 9))
    wanted = theirs(tokens).logits

    def check(folder: Path) -> None:
        found: Any = load_hub_folder(folder)
        torch.testing.assert_close(found.eval().logits(tokens), wanted, rtol=1e-5, atol=1e-5)

    check(tmp_path / "shards")
    tensors = stored(tmp_path / "shards")
    old = {key.removeprefix("transformer."): value for key, value in tensors.items()}
    old["h.0.attn.bias"] = torch.ones(1, 1, 64, 64)
    old["lm_head.weight"] = tensors["transformer.wte.weight"].clone()
    for name, write in (("model.safetensors", save_file), ("pytorch_model.bin", torch.save)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text((tmp_path / "shards/config.json").read_text())
        write(old, folder / name)
        check(folder)


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    write_folder(tmp_path, "llama-2")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    known = json.loads((tmp_path / "config.json").read_text())

    def refuse(words: str, changed: dict[str, torch.Tensor] | None = None, **values: Any) -> None:
        save_file(tensors if changed is None else changed, path)
        (tmp_path / "config.json").write_text(json.dumps(known | values))
        with pytest.raises(InvalidArgument, match=words):
            load_hub_folder(tmp_path)

    less = {key: value for key, value in tensors.items() if key != "model.norm.weight"}
    refuse("missing model.norm.weight; left over nothing", less)
    refuse("missing nothing; left over model.extra", {**tensors, "model.extra": torch.ones(2)})
    refuse(r"model.norm.weight has shape \(3,\).*has \(32,\)", {**tensors, "model.norm.weight": torch.ones(3)})
    refuse("activation is 'tanh'; expected one of '', 'silu'", hidden_act="tanh")
    refuse(
        "an architecture of .*Qwen9.*; the nearest known architecture is Qwen.*; expected one of",
        architectures=["Qwen9"],
    )
    refuse("rotary scaling 'spiral' is not valid; expected one of default", rope_parameters={"rope_type": "spiral"})
    refuse(r"quantized by 'hqq'; expected one of fp8, awq, .* float32", quantization_config={"quant_method": "hqq"})
    refuse("dtype is int8; expected one of float32, bfloat16", dtype="int8")
    eighth = {**tensors, "model.norm.weight": tensors["model.norm.weight"].to(torch.float8_e4m3fn)}
    refuse("the dtype of model.norm.weight is float8_e4m3fn; expected one of float32", eighth)
    (tmp_path / "config.json").write_text(json.dumps(known))
    path.write_bytes(b"\x10\0\0\0\0\0\0\0{damaged")
    with pytest.raises(InvalidArgument, match="is damaged"):
        load_hub_folder(tmp_path)
    path.unlink()
    with pytest.raises(NotFound, match=r"has no weights; expected model\.safetensors"):
        load_hub_folder(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../secret"}}))
    with pytest.raises(NotFound, match=r"names \.\./secret, which is not in the folder"):
        load_hub_folder(tmp_path)


@pytest.mark.parametrize("name", ["bloom", "falcon-7b", "gpt2", "llama-3.1", "mistral", "neox"])
def test_weights_of_half_width_and_their_tables_compute_in_it(name: str, tmp_path: Path) -> None:
    theirs = write_folder(tmp_path, name)
    tokens = torch.randint(2, WORDS, (1, 9))
    wanted = theirs(tokens).logits
    for dtype in (torch.bfloat16, torch.float16):
        folder = tmp_path / str(dtype)
        theirs.to(dtype).save_pretrained(folder, max_shard_size="30KB")
        found = load_hub_folder(folder).eval()
        assert {parameter.dtype for parameter in found.parameters()} == {dtype}
        spread = (theirs(tokens).logits.float() - wanted).abs().max()
        logits: torch.Tensor = found.logits(tokens)  # type: ignore[operator]
        assert logits.dtype == dtype
        assert (logits.float() - wanted).abs().max() < 2 * spread
        kept = load_hub_folder(folder, rounds_tables=False).state_dict()
        is_table = open_hub_folder(folder).hub.is_table
        assert {tensor.dtype for key, tensor in kept.items() if is_table(key)} <= {torch.float32}
        assert {tensor.dtype for key, tensor in kept.items() if not is_table(key)} == {dtype}


@pytest.mark.parametrize("name", ["llama-3.1", "gpt2"])
def test_a_head_of_its_own_beside_a_tied_embedding_is_read_as_transformers_reads_it(name: str, tmp_path: Path) -> None:
    theirs = write_folder(tmp_path, name)
    path = tmp_path / "model.safetensors"
    embedding = theirs.get_input_embeddings().weight.detach()
    save_file({**load_file(path), "lm_head.weight": embedding.flip(0).contiguous()}, path, {"format": "pt"})
    if name == "gpt2":
        with pytest.raises(
            InvalidArgument, match=r"lm_head.weight differs from transformer.wte.weight, but this model has"
        ):
            load_hub_folder(tmp_path)
        return
    tokens = torch.randint(2, WORDS, (1, 9))
    wanted = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)(tokens).logits
    found: Any = load_hub_folder(tmp_path)
    torch.testing.assert_close(found.logits(tokens), wanted, rtol=1e-5, atol=1e-5)
    assert open_hub_folder(tmp_path).sizes["is_tied"] is False


READS = """
import sys
from pathlib import Path
from rdukit_zoo.checkpoints.folder import load_hub_folder

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024

load_hub_folder(Path(sys.argv[1]))  # imports what loading needs
before = anonymous()
model = load_hub_folder(Path(sys.argv[1]))
total = sum(float(parameter.sum()) for parameter in model.parameters())
print(anonymous() - before, sum(parameter.nbytes for parameter in model.parameters()))
"""


@pytest.mark.long
@pytest.mark.parametrize("name", first_short(["llama-2", "gpt2"]))
def test_weights_are_mapped_and_not_copied(name: str, tmp_path: Path) -> None:
    large = CONFIGS[name]()
    width = {"gpt2": "n_embd", "llama-2": "hidden_size"}[name]
    setattr(large, width, 768), setattr(large, "vocab_size", 20_000)
    transformers.AutoModelForCausalLM.from_config(large).save_pretrained(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", READS, str(tmp_path)], capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    made, size = map(int, done.stdout.split())
    assert size > 80e6
    assert made < 0.1 * size


def test_the_random_folder_of_the_page_is_a_llama_with_its_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(code_blocks(read_page("huggingface.md"))[0], {})
    folder = open_hub_folder(tmp_path / "my-llama")
    assert (folder.entry.name, folder.sizes["vocabulary"]) == ("llama", 300)
    assert (tmp_path / "my-llama/tokenizer.json").is_file()
