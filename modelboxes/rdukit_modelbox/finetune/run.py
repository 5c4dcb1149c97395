"""A fine-tuning: verbs of the model's box, one after the other, each in a folder of its own. Called again with the same
arguments, it continues.

Sizes, tokenizer and chat template come from the Hugging Face folder; the training begins with its weights.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit.files.atomic import sha256_of, write_json_atomic
from rdukit.pef import read_pef
from rdukit.pef.memory import lease_bytes
from rdukit.pef.model import SymbolKind
from rdukit_modelbox.artifacts.hub_folder import box_of, limited_sizes, write_checkpoint
from rdukit_modelbox.contract.box import Box, Verb, find_box_file, load_box
from rdukit_modelbox.contract.check_parameters import check_parameters
from rdukit_modelbox.contract.models import model_name_of
from rdukit_modelbox.finetune.classes import (
    CLASSES,
    LABEL_COLUMN,
    PICTURES,
    TEXT_COLUMN,
    TEXTS,
    ChosenClasses,
    choose_classes,
    new_head,
)
from rdukit_modelbox.finetune.examples import PAIRS, PREFERENCES, TEXT, PreparedData, prepare_examples
from rdukit_modelbox.finetune.export import ADAPTER, export_folder, refuse_code
from rdukit_modelbox.finetune.options import (
    FULL_LR,
    LORA_ALPHA,
    LORA_LR,
    PREFERENCE_LORA_LR,
    PREFERENCE_LR,
    FinetuneOptions,
)
from rdukit_modelbox.finetune.peft_folder import PeftAdapter, adapter_for, base_of, is_peft_folder
from rdukit_modelbox.finetune.preferences import (
    MARGIN,
    Preferences,
    preference_entry,
    reference_margins,
    tokenize_pairs,
    write_records,
)
from rdukit_modelbox.finetune.seq2seq import SourcesWithTargets, seq2seq_box, tokenize_sources
from rdukit_modelbox.preprocessing.arrays import Arrays
from rdukit_modelbox.preprocessing.augmentation import augmentation_parameters
from rdukit_modelbox.preprocessing.picture_processor import picture_parameters
from rdukit_modelbox.preprocessing.tokenizer import load_tokenizer
from rdukit_modelbox.tasks.base import Task
from rdukit_modelbox.tasks.frozen_weights import BASE_PRECISIONS, F32
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_modelbox.training.journal import write_csv, write_events
from rdukit_modelbox.verbs import load_verb
from rdukit_modelbox.verbs.context import VerbContext, VerbResult
from rdukit_modelbox.verbs.evaluate import run_evaluate
from rdukit_modelbox.verbs.train import run_train
from rdukit_serving.shape import TRAIN, Shape
from rdukit_serving.text.chat_template import TOKENIZER_FILE
from rdukit_zoo.checkpoints.folder import HubFolder, identity_of, open_hub_folder, read_optional_json
from rdukit_zoo.registry import GENERATES_TEXT, TEXT_TO_TEXT, ModelEntry, SizeValue

#: Folder in the output from which a later run continues.
WORK: Final = ".finetune"
#: File of the output with the options and the results.
REPORT: Final = "finetune.json"
#: File of the output with the losses as a picture.
CURVE: Final = "curve.svg"
#: Tasks whose models are trained here.
TASKS: Final = (*GENERATES_TEXT, TEXTS, PICTURES)


@dataclass(frozen=True, slots=True)
class Finetuned:
    """Result of a fine-tuning: figures before and after on the same held-out sequences, and the folders written."""

    folder: Path
    adapter: Path | None
    before: Mapping[str, float]
    after: Mapping[str, float]
    steps: int
    trained_parameters: int
    curve: Path
    #: Bytes on the device: of the model's weights, and of all that a step has in memory at its peak.
    weight_bytes: int = 0
    step_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Request:
    """Checked request: the folder's model, and options completed from adapter, sizes and classes."""

    hub: HubFolder
    adapter: PeftAdapter | None
    options: FinetuneOptions
    classes: ChosenClasses | None
    sizes: dict[str, SizeValue]

    @property
    def is_language(self) -> bool:
        """Return whether the model generates text."""
        return self.classes is None


@dataclass(frozen=True, slots=True)
class _Data:
    """Prepared data: the data set, its samples to train on, and for preference pairs the splits.

    ``model``: task and model in place of the box's.
    """

    kind: str
    dataset: Path
    samples: int
    model: tuple[Task, ModelEntry] | None = None
    splits: Mapping[str, Arrays] = field(default_factory=dict)


def finetune(
    folder: Path, data: Path, output: Path, options: FinetuneOptions, context: VerbContext, base: Path | None = None,
    work: Path | None = None,
) -> Finetuned:  # fmt: skip
    """Train the model of a Hugging Face folder on data, and write such a folder.

    ``folder`` may be a PEFT adapter: its updates are trained further. Its base is ``base``, or the folder named in the
    adapter.

    Args:
        work: folder that a later call continues from; it belongs to this request alone. Default: one in ``output``,
            which another request is refused for.
    Raises:
        NotFound, InvalidArgument: the folder is of no model that is trained here, or the data cannot be used.
        Conflict: ``output`` holds something else.
        CompileError: the compiler refuses.
        Cancelled: between two steps; the same call continues.
    """
    request = _check_request(folder, data, options, base)
    hub, adapter, options, classes, sizes = (
        request.hub, request.adapter, request.options, request.classes, request.sizes
    )  # fmt: skip
    if work is None:
        for place in filter(Path.is_dir, (hub.path, folder, data)):
            if output.resolve().is_relative_to(place.resolve()):
                raise InvalidArgument(f"{output} lies in {place}, which it would change; expected --output elsewhere")
        stamps = [_stamp(hub.path), *([_stamp(folder)] if adapter else [])]
        work = _begin(output, {"folder": stamps, "data": [str(data.resolve()), *_stamp(data)], **asdict(options)})
    output.mkdir(parents=True, exist_ok=True)
    tell = context.log
    tell(_in_words(hub, sizes))
    checkpoint = work / "base"
    if not checkpoint.exists():
        head = new_head(hub, sizes, options.seed) if classes is not None and classes.replaces_head else None
        if head:
            tell(
                f"the head is new, because the classes of the data differ from the folder's: {', '.join(sorted(head))}"
            )
        beside = {**adapter.replaced, **adapter.tensors} if adapter else None
        write_checkpoint(hub, sizes, _fresh(work / "base.unfinished"), keeps_tied=True, head=head, beside=beside)
        (work / "base.unfinished").rename(checkpoint)
    made = _prepare(context, request, data, work)
    model, dataset = made.model, made.dataset
    batch_size = min(options.batch_size, made.samples)
    if batch_size < options.batch_size:
        tell(f"batches of {batch_size}, because there are {made.samples} training samples")
    pef = _compile(context, hub, model[1] if model else hub.entry, sizes, batch_size, options, work)
    is_preference = made.kind == PREFERENCES
    if model and is_preference:
        margins = reference_margins(context, model[1], pef, checkpoint, dataset, options.beta)
        splits = {split: {**arrays, MARGIN: margins[split]} for split, arrays in made.splits.items()}
        dataset = write_records(work / "data", splits, model[1], hub, sizes)
    inputs = {"pef": pef, "dataset": dataset, "checkpoint": checkpoint}
    judged = ("held_out_loss", "preferred" if is_preference else "perplexity" if request.is_language else "accuracy")
    before = _judge(context, inputs, work / "before", judged, model) if options.dev_ratio else {}
    steps = made.samples // (batch_size * options.accumulation_steps) * options.epochs
    training = _training(options, is_preference, min(steps, options.max_steps or steps))
    trained = _call(context, Verb.TRAIN, work / "train", inputs, training, model)
    after = {name: float(str(trained.figures[name])) for name in before if name in trained.figures}
    names = None if classes is None else classes.names
    replaced = adapter.replaced if adapter else ()
    written = export_folder(hub, sizes, trained.outputs["checkpoint"], output, names, replaced)
    curve = output / CURVE
    shutil.copyfile(trained.outputs["report"], curve)
    shutil.copyfile(trained.outputs["metrics"], output / "metrics.jsonl")
    write_csv(output / "metrics.jsonl", output / "metrics.csv")
    write_events(output / "metrics.jsonl", output / "tensorboard")
    steps, parameters = (int(str(trained.figures[name])) for name in ("steps", "trained_parameters"))
    asked = {**asdict(options), "data": data.name, "examples": made.kind, "sizes": sizes, "batch_size": batch_size}
    weights, step = _memory_of(pef)
    reached = {
        "before": before, "after": after, "steps": steps, "trained_parameters": parameters, "weight_bytes": weights,
        "step_bytes": step,
    }  # fmt: skip
    write_json_atomic(output / REPORT, {"asked": asked, "reached": reached})
    return Finetuned(output, written, before, after, steps, parameters, curve, weights, step)


def read_finetuned(folder: Path) -> Finetuned:
    """Return the result that ``finetune`` has written to a folder."""
    reached = json.loads((folder / REPORT).read_text())["reached"]
    adapter = folder / ADAPTER
    return Finetuned(
        folder, adapter if adapter.is_dir() else None, reached["before"], reached["after"], reached["steps"],
        reached["trained_parameters"], folder / CURVE, reached["weight_bytes"], reached["step_bytes"],
    )  # fmt: skip


def check_finetune(
    folder: Path, data: Path, options: FinetuneOptions, context: VerbContext, base: Path | None = None
) -> Path | None:
    """Check a request as ``finetune`` does, up to the prepared data. Returns the base of an adapter, if it is one.

    Raises:
        NotFound, InvalidArgument: as ``finetune``.
    """
    request = _check_request(folder, data, options, base)
    with TemporaryDirectory(prefix="rdukit-finetune-") as work:
        _prepare(context, request, data, Path(work))
    return request.hub.path if request.adapter else None


def _check_request(folder: Path, data: Path, options: FinetuneOptions, base: Path | None) -> _Request:
    hub = open_model(folder, base)
    adapter = adapter_for(folder, hub, options.lora)
    options = _with_adapter(options, adapter)
    if not data.exists():
        raise NotFound(f"{data} has no data; name a file, or a folder with files")
    classes = None if hub.entry.task in GENERATES_TEXT else choose_classes(hub, data)
    _check_options(options, classes)
    if options.augment and hub.entry.task != PICTURES:
        raise InvalidArgument("--augment is only for pictures; leave it out for a text model")
    sizes = limited_sizes(hub.entry, hub.sizes, options.context)
    if classes is not None:
        sizes[CLASSES] = classes.count
    return _Request(hub, adapter, options, classes, sizes)


def _prepare(context: VerbContext, request: _Request, data: Path, work: Path) -> _Data:
    """Write the data set below ``work``; that of preference pairs still lacks the margins of the reference."""
    hub, options, sizes = request.hub, request.options, request.sizes
    if hub.entry.task == TEXT_TO_TEXT:
        texts = tokenize_sources(data, hub, sizes, options.dev_ratio, options.seed, context)
        dataset = write_records(work / "data", texts, hub.entry, hub, sizes)
        return _Data(PAIRS, dataset, len(texts["train"]["tokens"]), (SourcesWithTargets(), hub.entry))
    if request.is_language:
        known = load_tokenizer(hub.path).vocabulary
        if known > int(sizes["vocabulary"]):
            raise InvalidArgument(
                f"{hub.path / TOKENIZER_FILE} has {known} tokens, but the model {sizes['vocabulary']}; expected at "
                "most as many: save the model again after resize_token_embeddings, or remove the added tokens"
            )
        examples = prepare_examples(data, hub.path, _end_of_text(hub.path), work / "examples.jsonl")
    else:
        examples = PreparedData(data, hub.entry.task)
    if examples.kind == PREFERENCES:
        entry = preference_entry(hub.entry, options.beta)
        splits = tokenize_pairs(
            examples.path, hub, int(sizes["context_length"]), options.dev_ratio, options.seed
        )  # fmt: skip
        dataset = write_records(work / "pairs", splits, entry, hub, sizes)
        return _Data(examples.kind, dataset, len(splits["train"][MARGIN]), (Preferences(), entry), splits)
    made = _preprocess(context, hub, examples, sizes, options, work)
    if not request.is_language and not made.figures["test_samples"]:
        raise InvalidArgument(
            f"--held-out {options.dev_ratio:g} selects no records; expected a larger share, or more data"
        )
    samples = int(str(made.figures["train_sequences" if request.is_language else "train_samples"]))
    return _Data(examples.kind, made.outputs["dataset"], samples)


def _with_adapter(options: FinetuneOptions, adapter: PeftAdapter | None) -> FinetuneOptions:
    """Return the options with the values that an adapter fixes, and the default of ``lora_alpha``.

    Raises:
        InvalidArgument: the request differs from the adapter.
    """
    if adapter is None:
        if not options.lora and (options.lora_layers or options.lora_alpha):
            raise InvalidArgument("--lora-layers and --lora-alpha are only for low-rank updates; add --lora RANK")
        return replace(options, lora_alpha=options.lora_alpha or LORA_ALPHA)
    if options.lora_layers or options.lora_alpha not in {0.0, adapter.alpha}:
        raise InvalidArgument(
            f"{adapter.path} sets its own layers and alpha, {adapter.alpha:g}; leave out --lora-layers and --lora-alpha"
        )
    return replace(options, lora=adapter.rank, lora_alpha=adapter.alpha, lora_layers=adapter.layers)


def _in_words(hub: HubFolder, sizes: Mapping[str, SizeValue]) -> str:
    """Return the model with its non-default sizes, as text."""
    other = [f"{name} {value}" for name, value in sizes.items() if hub.entry.sizes.get(name) != value]
    return f"{hub.entry.name}: {', '.join(other) or 'all sizes are its defaults'}"


def open_model(folder: Path, base: Path | None = None) -> HubFolder:
    """Open a folder of a model that is trained here, or the base of an adapter. No code in it runs.

    Raises:
        NotFound, InvalidArgument: as ``open_hub_folder``; the model needs code of its own, does not generate text, or
            lacks a tokenizer.
    """
    if is_peft_folder(folder):
        folder = base_of(folder, base)
    elif base is not None:
        raise InvalidArgument(
            f"--base is only for an adapter, but {folder} has no adapter_config.json; leave out --base"
        )
    hub = open_hub_folder(folder)
    refuse_code(hub)
    if hub.entry.task not in TASKS:
        raise InvalidArgument(
            f"{folder} contains {hub.entry.name}, which neither generates text nor classifies; expected a model that "
            f"does, or train it with its box: rdukit box describe {box_of(hub.entry)}"
        )
    if hub.entry.task != PICTURES and not (folder / TOKENIZER_FILE).is_file():
        raise InvalidArgument(
            f"{folder} has no {TOKENIZER_FILE}; expected one, so save the tokenizer into it: "
            "AutoTokenizer.from_pretrained(…).save_pretrained(…)"
        )
    identity_of(hub)
    return hub


def _begin(output: Path, asked: Mapping[str, object]) -> Path:
    """Return the work folder of an output that is empty, or that the same request left unfinished.

    Removes the remains of an earlier request that ended before its training, for example with refused data.
    """
    work, note = output / WORK, output / WORK / "asked.json"
    digest = sha256_of(json.dumps(asked, sort_keys=True).encode())
    if note.is_file() and json.loads(note.read_text()).get("digest") == digest:
        return work
    if work.is_dir() and not (work / "train").exists() and list(output.iterdir()) == [work]:
        shutil.rmtree(work)  # also one without a note, of a process that was killed before it
    if output.exists() and any(output.iterdir()):
        raise Conflict(f"{output} contains other files; name another folder with --output, or remove it")
    work.mkdir(parents=True, exist_ok=True)
    write_json_atomic(note, {"digest": digest})
    return work


def _stamp(place: Path) -> list[list[object]]:
    """Return name, size and time of a file, or of all files in a folder."""
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    return [[str(path.relative_to(place)), path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _end_of_text(folder: Path) -> str:
    """Return the token at the end of a text from the tokenizer's configuration; empty if it names none."""
    path = folder / "tokenizer_config.json"
    value = read_optional_json(path).get("eos_token")
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _preprocess(
    context: VerbContext, hub: HubFolder, examples: PreparedData, sizes: Mapping[str, SizeValue],
    options: FinetuneOptions, work: Path,
) -> VerbResult:  # fmt: skip
    if examples.kind in {TEXTS, PICTURES}:
        return _preprocess_classes(context, hub, examples, sizes, options, work)
    packing = "full" if examples.kind == TEXT else "greedy::truncate_right"
    parameters: dict[str, object] = {
        "max_seq_length": sizes["context_length"], "input_packing_config": packing, "seed": options.seed,
        "dev_ratio": options.dev_ratio, "num_training_splits": 1,
        "disable_space_separator": examples.kind != PAIRS,
    }  # fmt: skip
    inputs = {"data": examples.path, "tokenizer": hub.path}
    return _call(context, Verb.PREPROCESS, work / "data", inputs, parameters)


def _preprocess_classes(
    context: VerbContext, hub: HubFolder, examples: PreparedData, sizes: Mapping[str, SizeValue],
    options: FinetuneOptions, work: Path,
) -> VerbResult:  # fmt: skip
    known = {p.name: sizes[p.name] for p in context.box.parameters_of(Verb.PREPROCESS) if p.size and p.name in sizes}
    parameters: dict[str, object] = {**known, "seed": options.seed, "test_ratio": options.dev_ratio}
    inputs = {"data": examples.path}
    if examples.kind == TEXTS:
        parameters |= {"text_column": TEXT_COLUMN, "label_column": LABEL_COLUMN}
        inputs["tokenizer"] = hub.path
    else:
        parameters |= {**picture_parameters(hub), **augmentation_parameters(options.augment)}
    return _call(context, Verb.PREPROCESS, work / "data", inputs, parameters)


def _check_options(options: FinetuneOptions, classes: ChosenClasses | None) -> None:
    if options.base_precision not in BASE_PRECISIONS:
        raise InvalidArgument(
            f"the base precision is {options.base_precision!r}; expected one of {', '.join(BASE_PRECISIONS)}"
        )
    if options.base_precision != F32 and not options.lora:
        raise InvalidArgument(
            f"--base-precision {options.base_precision} is only for a frozen base; add --lora RANK, or train in f32"
        )
    if classes is None:
        return
    if options.lora and classes.replaces_head:
        raise InvalidArgument(
            "--lora trains no head, but classes that differ from the folder's need a new head; train all weights, or "
            "bring data with the folder's classes"
        )
    if not options.dev_ratio:
        raise InvalidArgument("--held-out is 0; expected more, because a classifier is evaluated on unseen records")


def _compile(
    context: VerbContext, hub: HubFolder, entry: ModelEntry, sizes: Mapping[str, SizeValue], batch_size: int,
    options: FinetuneOptions, work: Path,
) -> Path:  # fmt: skip
    """Compile for the folder's sizes, which may exceed the limits of a box's parameters."""
    box = context.box
    found = work / "pef" / box.name / f"{box.name}.pef"
    if not (work / "pef.done").exists():
        context.log(
            f"compiling {hub.entry.name} to train" + (f" updates of rank {options.lora}" if options.lora else "")
        )
        shape = Shape(
            model_name_of(box), sizes, batch_size, "f32", task=entry.task, purpose=TRAIN, optimizer="adamw",
            clips_gradients=True, lora_rank=options.lora, lora_alpha=options.lora_alpha,
            lora_layers=options.lora_layers, base_precision=options.base_precision,
            accumulation_steps=options.accumulation_steps, layer_decay=options.layer_decay,
        )  # fmt: skip
        found = ModelProgram(shape, entry=entry).compile(box.name, work / "pef", "o3", "sn30", 1)
        (work / "pef.done").touch()
    return found


def _memory_of(pef: Path) -> tuple[int, int]:
    """Return the bytes of a PEF's parameters and buffers, and of the lease of a step."""
    known = read_pef(pef).pef
    held = [s.bytes for s in known.symbols.values() if s.kind in {SymbolKind.PARAMETER, SymbolKind.BUFFER}]
    return sum(held), lease_bytes(known)


def _training(options: FinetuneOptions, is_preference: bool, steps: int) -> dict[str, object]:
    """Return the parameters of train; the rate falls to 0 after the last step, as that of transformers' Trainer."""
    usual = (PREFERENCE_LORA_LR, PREFERENCE_LR) if is_preference else (LORA_LR, FULL_LR)
    return {
        "epochs": options.epochs, "max_steps": options.max_steps, "seed": options.seed, "continue_as": "weights",
        "lr": options.lr or usual[0 if options.lora else 1], "warmup_steps": options.warmup_steps,
        "schedule": "linear", "final_lr_share": 1 / max(1, steps - options.warmup_steps), "weight_decay": 0.0,
        "beta2": 0.999, "ema_decay": options.ema_decay,
    }  # fmt: skip


def _judge(
    context: VerbContext, inputs: Mapping[str, Path], output: Path, names: tuple[str, ...],
    model: tuple[Task, ModelEntry] | None,
) -> dict[str, float]:  # fmt: skip
    figures = _call(context, Verb.EVALUATE, output, inputs, {}, model).figures
    return {name: float(str(figures[name])) for name in names}


def _call(
    context: VerbContext, verb: Verb, output: Path, inputs: Mapping[str, Path], parameters: Mapping[str, object],
    model: tuple[Task, ModelEntry] | None = None,
) -> VerbResult:  # fmt: skip
    output.mkdir(parents=True, exist_ok=True)
    checked = check_parameters(context.box, verb, parameters)
    if model is None:
        return load_verb(verb)(context, checked, inputs, output)
    run = run_train if verb is Verb.TRAIN else run_evaluate
    return run(context, checked, inputs, output, model)


def box_for(folder: Path, base: Path | None = None) -> Box:
    """Return the box whose verbs train the model of a folder.

    Raises:
        NotFound, InvalidArgument: as ``open_model``.
    """
    entry = open_model(folder, base).entry
    return seq2seq_box(entry) if entry.task == TEXT_TO_TEXT else load_box(find_box_file(box_of(entry)))
