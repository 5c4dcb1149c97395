"""Which public programs are run, with which commands, and what each must have done. Data; ``run.py`` does it."""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from first_difference import Fork

TUTORIALS: Final = "tutorials"
MODELZOO: Final = "modelzoo"
#: Model families that the model zoo's programs are run for.
FAMILIES: Final = ("llama", "mistral", "gemma")
LENGTH: Final = 64


class CheckFailed(Exception):
    """A command exited well and has not done what it says."""


@dataclass(frozen=True, slots=True)
class Context:
    """Where the programs, their inputs and their outputs are, and what earlier commands printed, by step name.

    ``find_fork``: checkpoint, prompt, the text of the CPU script and that of the device → where they part.
    """

    programs: Path
    materials: Path
    out: Path
    printed: dict[str, str] = field(default_factory=dict)
    find_fork: Callable[[Path, str, str, str], Fork | None] = lambda model, prompt, theirs, ours: None


Check = Callable[[Context, str], str]


@dataclass(frozen=True, slots=True)
class Step:
    """One command, in a fresh process: ``argv`` after ``python``, below ``repository/folder``.

    ``{programs}``, ``{materials}`` and ``{out}`` in ``argv`` become paths. ``check`` gets what was printed and answers
    in a few words what it found, or raises ``CheckFailed``.
    """

    name: str
    repository: str
    folder: str
    argv: str
    check: Check
    environment: Mapping[str, str] = field(default_factory=dict)


def steps() -> list[Step]:
    """All commands, in the order in which they need each other."""
    return [*_logreg(), *_lenet(), *_generative(), *_generate_text(), *_train()]


# -- what commands must have done -------------------------------------------------------------------------------------


def _wrote_pef(path: str) -> Check:
    def check(context: Context, printed: str) -> str:
        pef = context.out / path
        if not pef.is_file():
            raise CheckFailed(f"there is no {path}")
        return f"{path}, {pef.stat().st_size / 1000:.0f} kB"

    return check


def _at_least(pattern: str, least: float, what: str, unit: str = "") -> Check:
    """The last number that ``pattern`` finds is ``least`` or more."""

    def check(context: Context, printed: str) -> str:
        found = [float(text) for text in re.findall(pattern, printed)]
        if not found:
            raise CheckFailed(f"no {what} was printed")
        if found[-1] < least:
            raise CheckFailed(f"{what} {found[-1]}{unit}, less than {least}{unit}")
        return f"{what} {found[-1]}{unit}"

    return check


def _falls(pattern: str) -> Check:
    """The mean of the last quarter of losses is below that of the first."""

    def check(context: Context, printed: str) -> str:
        losses = [float(text) for text in re.findall(pattern, printed)]
        quarter = max(1, len(losses) // 4)
        if len(losses) < 2:
            raise CheckFailed("fewer than two losses were printed")
        first, last = sum(losses[:quarter]) / quarter, sum(losses[-quarter:]) / quarter
        if not last < first:
            raise CheckFailed(f"the loss went from {first:.4f} to {last:.4f}")
        return f"loss {first:.3f} → {last:.3f}"

    return check


def _completion(printed: str) -> str:
    found = re.search(r"Completion:\n(.*)", printed)
    if found is None:
        raise CheckFailed("no completion was printed")
    return found[1]


def _some_text(context: Context, printed: str) -> str:
    return f"{len(_completion(printed))} characters"


def _texts(title: str, printed: str) -> list[str]:
    """A list of texts that a program printed below a title."""
    found = re.search(rf"^{title}:\n(\[.*\])$", printed, re.MULTILINE)
    if found is None:
        raise CheckFailed(f"no list of {title.lower()} was printed")
    return [str(text) for text in ast.literal_eval(found[1])]


def _same_text(other: str, family: str) -> Check:
    """Every token is the CPU script's, up to one where bf16 cannot tell which is the best."""

    def check(context: Context, printed: str) -> str:
        prompts = _texts("Prompts", printed)
        pairs = zip(prompts, _texts("Completion", context.printed[other]), _texts("Completion", printed), strict=True)
        ties = []
        for prompt, theirs, ours in pairs:
            if theirs == ours:
                continue
            fork = context.find_fork(context.materials / family, prompt, theirs, ours)
            if fork is None:
                raise CheckFailed(
                    f"the completion is {ours!r}, the CPU script's {theirs!r}, by another token than the best"
                )
            verdict = f"{fork.tokens} tokens equal the CPU script's, then the logits are {_logits(fork)}"
            if not fork.is_tie:
                raise CheckFailed(f"{verdict}: bf16 tells them apart")
            ties.append(f"{verdict}: a tie")
        return "; ".join(ties) or "every token equals the CPU script's"

    return check


def _logits(fork: Fork) -> str:
    return f"{fork.ours:.4f} for ours and {fork.theirs:.4f} for its, which bf16 moves by up to {fork.noise:.4f}"


def _losses(printed: str) -> list[float]:
    found = [float(text) for text in re.findall(r"Step \[\d+/\d+\], Loss: ([\d.]+)", printed)]
    if not found:
        raise CheckFailed("no loss was printed")
    return found


def _loss_range(context: Context, printed: str) -> str:
    losses = _losses(printed)
    return f"loss {losses[0]:.3f} → {losses[-1]:.3f}"


def _same_losses(other: str, tolerance: float) -> Check:
    """Every loss is within ``tolerance`` of the other's, relative: bf16 keeps 8 bits, 0.4 %."""

    def check(context: Context, printed: str) -> str:
        ours, theirs = _losses(printed), _losses(context.printed[other])
        if len(ours) != len(theirs):
            raise CheckFailed(f"{len(ours)} losses, the CPU script has {len(theirs)}")
        worst = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
        if worst > tolerance:
            raise CheckFailed(f"a loss is {worst:.2%} off the CPU script's")
        return f"{len(ours)} losses {ours[0]:.3f} → {ours[-1]:.3f}, at most {worst:.3%} off the CPU script's"

    return check


def _generated(context: Context, printed: str) -> str:
    texts = printed.split("-" * 20)
    if len(texts) != 3 or "Once upon a time" not in texts[0]:
        raise CheckFailed(f"{len(texts)} predictions were printed instead of 3")
    return "3 prompts continued"


def _predictions(context: Context, printed: str) -> str:
    found = next((path for path in (context.out / "results").rglob("*") if path.is_file()), None)
    if found is None:
        raise CheckFailed("no predictions were written")
    images = (context.materials / "mnist" / "inference-images-idx3-ubyte").read_bytes()
    labels = (context.materials / "mnist" / "t10k-labels-idx1-ubyte").read_bytes()[8:]
    predicted = found.read_bytes()[8:]
    count = int.from_bytes(images[4:8], "big")
    right = sum(a == b for a, b in zip(predicted, labels, strict=False)) / min(len(predicted), count)
    if right < 0.9:
        raise CheckFailed(f"{right:.1%} of the predictions are right")
    return f"{len(predicted)} predictions, {right:.1%} right"


# -- programs ---------------------------------------------------------------------------------------------------------


def _logreg() -> list[Step]:
    where = (TUTORIALS, "hello_world")
    data = "--data-dir {materials}/mnist"
    return [
        Step("logreg compile", *where, "logreg.py compile --pef-name=logreg --output-folder={out}",
             _wrote_pef("logreg/logreg.pef")),
        Step("logreg run", *where, f"logreg.py run --num-epochs 2 --pef={{out}}/logreg/logreg.pef {data}",
             _at_least(r"Accuracy[^\d\n]*([\d.]+)", 90, "test accuracy", " %")),
    ]  # fmt: skip


def _lenet() -> list[Step]:
    where = (TUTORIALS, "lenet")
    run = "lenet.py run --batch-size 32 --pef {out}/lenet-b32/lenet-b32.pef --data-dir {materials}/mnist"
    train = f"{run} --ckpt-dir {{out}}/checkpoints"
    loss = r"Loss: ([\d.]+)"
    return [
        Step("lenet compile", *where, "lenet.py compile --batch-size 32 --pef-name lenet-b32 --output-folder={out}",
             _wrote_pef("lenet-b32/lenet-b32.pef")),
        Step("lenet run", *where, train, _falls(loss)),
        Step("lenet run, resumed", *where, f"{train} --init-ckpt-path {{out}}/checkpoints/250.pt --num-epochs 2",
             _falls(loss)),
        Step("lenet run --test", *where, f"{run} --test --init-ckpt-path {{out}}/checkpoints/500.pt",
             _at_least(r"Accuracy: *([\d.]+)", 90, "test accuracy", " %")),
        Step("lenet run --inference", *where,
             f"{run} --inference --dataset-name inference --results-dir {{out}}/results "
             "--init-ckpt-path {out}/checkpoints/500.pt", _predictions),
    ]  # fmt: skip


def _generative() -> list[Step]:
    where = (TUTORIALS, "generative_nlp")
    model = f"--max_seq_length {LENGTH} --config_name {{materials}}/gpt2 --model_name_or_path {{materials}}/gpt2"
    target = "--output-folder={out} --log-level=error --num-tiles 4 --resources-scaling-factors 0.8 0.8 0.8"
    train = f"{model} --batch-size 8 --weight_decay 0.1 --max_grad_norm_clip 1.0"
    return [
        Step("generative_train compile", *where, f"generative_train.py compile {train} --pef-name=train {target}",
             _wrote_pef("train/train.pef"), {"SN_NUM_THREADS": "32"}),
        Step("generative_train run", *where,
             f"generative_train.py run {train} --learning_rate 0.01 --data_dir {{materials}}/sequences --steps 80 "
             "--min_eval_acc 0.5 --checkpoint_name {out}/generative.pt --log-level error --pef {out}/train/train.pef",
             _at_least(r"Final eval accuracy: ([\d.]+)", 0.5, "its own eval accuracy"), {"SAMBA_SEED": "256"}),
        Step("generative_inference compile", *where,
             f"generative_inference.py compile --inference --batch-size 1 {model} --arch sn20 --pef-name=inference "
             f"{target}", _wrote_pef("inference/inference.pef")),
        Step("generative_inference run", *where,
             f"generative_inference.py run --inference --batch-size 1 {model} --data_dir {{materials}}/prompts.jsonl "
             "--max_tokens_to_generate 20 --checkpoint_name {out}/generative.pt --log-level=error "
             "--pef {out}/inference/inference.pef", _generated,
             {"SAMBA_SEED": "256", "CONVFUNC_DEBUG_RUN": "1", "DISALLOW_VISUALIZE": "True"}),
    ]  # fmt: skip


def _generate_text() -> list[Step]:
    found = [step for family in FAMILIES for step in _generate_text_of(family, family, "")]
    two = "generation.batch_size=2 generation.prompts=[Once,There] +generation.static_seq_lengths=[32,64]"
    return [*found, *_generate_text_of("llama", "llama-b2", two)]


def _generate_text_of(family: str, name: str, options: str) -> list[Step]:
    where = (MODELZOO, "examples/nlp/text_generation")
    model = f"checkpoint.model_name_or_path={{materials}}/{family} model.max_seq_length={LENGTH} {options}"
    more = f"generation.max_new_tokens=32 generation.output_dir={{out}}/generated-{name}"
    cpu = f"cpu_generate_text {name}"
    return [
        Step(cpu, *where, f"cpu_generate_text.py {model} generation.max_new_tokens=32", _some_text),
        Step(f"rdu_generate_text {name} compile", *where,
             f"rdu_generate_text.py command=compile {model} samba_compile.output_folder={{out}} "
             f"samba_compile.pef_name={name} samba_compile.arch=sn40", _wrote_pef(f"{name}/{name}.pef")),
        Step(f"rdu_generate_text {name} run", *where,
             f"rdu_generate_text.py command=run {model} samba_run.pef={{out}}/{name}/{name}.pef {more}",
             _same_text(cpu, family)),
    ]  # fmt: skip


def _train() -> list[Step]:
    where = (MODELZOO, "examples/nlp/training")
    model, common = "{materials}/llama", f"model.max_seq_length={LENGTH} training.learning_rate=1e-3"
    run = "training.dataset={materials}/sequences +training.end_early_at_step=12"
    compile_ = f"command=compile checkpoint.config_name={model} {common} samba_compile.arch=sn30 "
    compile_ += "samba_compile.output_folder={out} +samba_compile.pef_name="
    return [
        Step("cpu_train_llm", *where,
             f"cpu_train_llm.py checkpoint.model_name_or_path={model} {common} training.batch_size=4 {run} "
             "training.output_dir={out}/tuned_cpu", _loss_range),
        Step("rdu_train_llm compile", *where, f"rdu_train_llm.py training.batch_size=4 {compile_}tune",
             _wrote_pef("tune/tune.pef")),
        Step("rdu_train_llm run", *where,
             f"rdu_train_llm.py command=run checkpoint.model_name_or_path={model} {common} {run} "
             "samba_run.pef={out}/tune/tune.pef training.output_dir={out}/tuned", _same_losses("cpu_train_llm", 0.01)),
        Step("rdu_train_llm_dp compile", *where, f"rdu_train_llm_dp.py training.batch_size=2 {compile_}tune_dp",
             _wrote_pef("tune_dp/tune_dp.pef")),
        Step("rdu_train_llm_dp run, 2 ranks", *where,
             "-m torch.distributed.run --standalone --nproc-per-node 2 rdu_train_llm_dp.py command=run "
             f"checkpoint.model_name_or_path={model} {common} {run} samba_run.pef={{out}}/tune_dp/tune_dp.pef "
             "training.output_dir={out}/tuned_dp", _falls(r"Loss: ([\d.]+)")),
    ]  # fmt: skip


__all__ = ["MODELZOO", "TUTORIALS", "CheckFailed", "Context", "Step", "steps"]
