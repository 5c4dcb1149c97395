"""Public programs, their commands, and checks of their results, as data for ``run.py``."""

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
    """A command exited with 0, but its result fails a check."""


@dataclass(frozen=True, slots=True)
class Context:
    """Folders of the programs, their inputs and their outputs, and the output of earlier commands by step name.

    ``find_fork``: checkpoint, prompt, the text of the CPU script and that of the device → their first difference.
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
    in a few words what it found, or raises ``CheckFailed``. ``is_variant``: it is one of ``variants.py``.
    """

    name: str
    repository: str
    folder: str
    argv: str
    check: Check
    environment: Mapping[str, str] = field(default_factory=dict)
    is_variant: bool = False


def steps() -> list[Step]:
    """Return all commands, each after those that it needs; ``variants.py`` has those of variants."""
    two = "generation.batch_size=2 generation.prompts=[Once,There] +generation.static_seq_lengths=[32,64]"
    return [
        *logreg_steps(), *_lenet(), *_generative(), *(step for name in FAMILIES for step in text_steps(name, name)),
        *text_steps("llama", "llama-b2", two), *train_steps("llama", ""), *parallel_steps("llama", ""),
    ]  # fmt: skip


# -- what commands must have done -------------------------------------------------------------------------------------


def _wrote_pef(path: str) -> Check:
    def check(context: Context, printed: str) -> str:
        pef = context.out / path
        if not pef.is_file():
            raise CheckFailed(f"there is no {path}")
        return f"{path}, {pef.stat().st_size / 1000:.0f} kB"

    return check


def _at_least(pattern: str, least: float, what: str, unit: str = "") -> Check:
    """Check that the last number that ``pattern`` finds is ``least`` or more."""

    def check(context: Context, printed: str) -> str:
        found = [float(text) for text in re.findall(pattern, printed)]
        if not found:
            raise CheckFailed(f"no {what} was printed")
        if found[-1] < least:
            raise CheckFailed(f"{what} {found[-1]}{unit}, less than {least}{unit}")
        return f"{what} {found[-1]}{unit}"

    return check


def _falls(pattern: str) -> Check:
    """Check that the mean of the last quarter of losses is below that of the first."""

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
    """Return the list of texts that a program printed below a title."""
    found = re.search(rf"^{title}:\n(\[.*\])$", printed, re.MULTILINE)
    if found is None:
        raise CheckFailed(f"no list of {title.lower()} was printed")
    return [str(text) for text in ast.literal_eval(found[1])]


def _same_text(other: str, family: str) -> Check:
    """Check that every token is the CPU script's, up to one where rounding to bf16 decides which is the best."""

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
    """Check that losses differ by at most ``tolerance``, relative: bf16 keeps 8 bits, 0.4 %."""

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


def logreg_steps(name: str = "logreg", both: str = "", compiled: str = "", ranks: int = 1) -> list[Step]:
    """Return the steps of the logistic regression, named ``name``; ``both``: options of compile and run."""
    where, pef = (TUTORIALS, "hello_world"), slug(name)
    run = "" if ranks == 1 else f"-m torch.distributed.run --standalone --nproc-per-node {ranks} "
    return [
        Step(f"{name} compile", *where,
             f"logreg.py compile --pef-name={pef} --output-folder={{out}} {both} {compiled}",
             _wrote_pef(f"{pef}/{pef}.pef")),
        Step(f"{name} run", *where,
             f"{run}logreg.py run --num-epochs 2 --pef={{out}}/{pef}/{pef}.pef --data-dir {{materials}}/mnist {both}",
             _at_least(r"Accuracy[^\d\n]*([\d.]+)", 90, "test accuracy", " %")),
    ]  # fmt: skip


def lenet_steps(name: str = "lenet", batch: int = 32, compiled: str = "", ran: str = "", ranks: int = 1) -> list[Step]:
    """Return the steps that compile and train the convolutional network, named ``name``."""
    where, pef, loss = (TUTORIALS, "lenet"), _lenet_pef(name, batch), r"Loss: ([\d.]+)"
    run = "" if ranks == 1 else f"-m torch.distributed.run --standalone --nproc-per-node {ranks} "
    return [
        Step(f"{name} compile", *where,
             f"lenet.py compile --batch-size {batch} --pef-name {pef} --output-folder={{out}} {compiled}",
             _wrote_pef(f"{pef}/{pef}.pef")),
        Step(f"{name} run", *where, f"{run}{_lenet_run(name, batch)} --ckpt-dir {{out}}/checkpoints-{pef} {ran}",
             _falls(loss)),
    ]  # fmt: skip


def _lenet_pef(name: str, batch: int) -> str:
    return f"{slug(name)}-b{batch}"


def _lenet_run(name: str, batch: int) -> str:
    pef = _lenet_pef(name, batch)
    return f"lenet.py run --batch-size {batch} --pef {{out}}/{pef}/{pef}.pef --data-dir {{materials}}/mnist"


def _lenet() -> list[Step]:
    where, run, kept = (TUTORIALS, "lenet"), _lenet_run("lenet", 32), "{out}/checkpoints-lenet-b32"
    return [
        *lenet_steps(),
        Step("lenet run, resumed", *where,
             f"{run} --ckpt-dir {kept} --init-ckpt-path {kept}/250.pt --num-epochs 2", _falls(r"Loss: ([\d.]+)")),
        Step("lenet run --test", *where, f"{run} --test --init-ckpt-path {kept}/500.pt",
             _at_least(r"Accuracy: *([\d.]+)", 90, "test accuracy", " %")),
        Step("lenet run --inference", *where,
             f"{run} --inference --dataset-name inference --results-dir {{out}}/results "
             f"--init-ckpt-path {kept}/500.pt", _predictions),
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


def text_steps(
    family: str, name: str, both: str = "", compiled: str = "", length: int | None = LENGTH
) -> list[Step]:  # fmt: skip
    """Return the steps that generate text on the CPU, compile, and generate it on the device.

    Args:
        name: of the variant. both, compiled: options of all commands, and of the compile alone.
        length: longest sequence; None leaves it to the program's own configuration.
    """
    where, pef = (MODELZOO, "examples/nlp/text_generation"), slug(name)
    model = f"checkpoint.model_name_or_path={{materials}}/{family} {both}"
    model += f" model.max_seq_length={length}" if length is not None else ""
    tokens = f"generation.max_new_tokens={min(32, (length or LENGTH) // 2)}"
    cpu = f"cpu_generate_text {name}"
    return [
        Step(cpu, *where, f"cpu_generate_text.py {model} {tokens}", _some_text),
        Step(f"rdu_generate_text {name} compile", *where,
             f"rdu_generate_text.py command=compile {model} samba_compile.output_folder={{out}} "
             f"samba_compile.pef_name={pef} samba_compile.arch=sn40 {compiled}", _wrote_pef(f"{pef}/{pef}.pef")),
        Step(f"rdu_generate_text {name} run", *where,
             f"rdu_generate_text.py command=run {model} samba_run.pef={{out}}/{pef}/{pef}.pef {tokens} "
             f"generation.output_dir={{out}}/generated-{pef}", _same_text(cpu, family)),
    ]  # fmt: skip


def train_steps(family: str, name: str, both: str = "", compiled: str = "", batch: int = 4) -> list[Step]:
    """Steps that compile and train a language model on the device, and on the CPU before; ``name``: of the variant.

    The CPU script takes llama only: the labels are int32, which torch refuses for the other families. There the losses
    must fall.
    """
    where, pef, cpu = (MODELZOO, "examples/nlp/training"), slug(f"tune {name}"), f"cpu_train_llm {name}".strip()
    rdu = f"rdu_train_llm {name}".strip()
    on_cpu = [
        Step(cpu, *where,
             f"cpu_train_llm.py {_trained(family, both)} training.batch_size={batch} "
             f"training.output_dir={{out}}/{pef}_cpu", _loss_range),
    ] if family == "llama" else []  # fmt: skip
    return [
        *on_cpu,
        Step(f"{rdu} compile", *where,
             f"rdu_train_llm.py training.batch_size={batch} {_compiled(family, pef, both)} {compiled}",
             _wrote_pef(f"{pef}/{pef}.pef")),
        Step(f"{rdu} run", *where,
             f"rdu_train_llm.py command=run {_trained(family, both)} samba_run.pef={{out}}/{pef}/{pef}.pef "
             f"training.output_dir={{out}}/{pef}_tuned",
             _same_losses(cpu, 0.01) if on_cpu else _falls(r"Loss: ([\d.]+)")),
    ]  # fmt: skip


def parallel_steps(family: str, name: str, both: str = "", compiled: str = "", ranks: int = 2) -> list[Step]:
    """Return the steps that compile and train a language model on ``ranks`` processes; ``name``: of the variant."""
    where, pef, rdu = (MODELZOO, "examples/nlp/training"), slug(f"tune_dp {name}"), f"rdu_train_llm_dp {name}".strip()
    return [
        Step(f"{rdu} compile", *where,
             f"rdu_train_llm_dp.py training.batch_size=2 {_compiled(family, pef, both)} {compiled}",
             _wrote_pef(f"{pef}/{pef}.pef")),
        Step(f"{rdu} run, {ranks} ranks", *where,
             f"-m torch.distributed.run --standalone --nproc-per-node {ranks} rdu_train_llm_dp.py command=run "
             f"{_trained(family, both)} samba_run.pef={{out}}/{pef}/{pef}.pef training.output_dir={{out}}/{pef}_tuned",
             _falls(r"Loss: ([\d.]+)")),
    ]  # fmt: skip


_COMMON: Final = f"model.max_seq_length={LENGTH} training.learning_rate=1e-3"


def _compiled(family: str, pef: str, both: str) -> str:
    return (
        f"command=compile checkpoint.config_name={{materials}}/{family} {_COMMON} {both} samba_compile.arch=sn30 "
        f"samba_compile.output_folder={{out}} +samba_compile.pef_name={pef}"
    )


def _trained(family: str, both: str) -> str:
    return (
        f"checkpoint.model_name_or_path={{materials}}/{family} {_COMMON} {both} "
        "training.dataset={materials}/sequences +training.end_early_at_step=12"
    )


def slug(name: str) -> str:
    """Return a name that is a file's: letters, digits, hyphens and underscores."""
    return re.sub(r"[^\w-]+", "-", name).strip("-")


__all__ = [
    "MODELZOO", "TUTORIALS", "CheckFailed", "Context", "Step", "lenet_steps", "logreg_steps", "parallel_steps", "slug",
    "steps", "text_steps", "train_steps",
]  # fmt: skip
