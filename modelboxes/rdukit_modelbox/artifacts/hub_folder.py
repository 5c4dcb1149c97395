"""A Hugging Face folder → a PEF that serves it and a checkpoint as boxes read them.

The results are cached: the checkpoint by the folder, the PEF by the model and its sizes. The PEF has no native kernels
yet, since these take longest; ``native_kernels`` builds them while the model is served. Run as a program of its own,
because the process of a box imports neither torch nor models::

    python -m rdukit_modelbox.artifacts.hub_folder PARENT FOLDER MADE PRECISION [CONTEXT]

MADE is the ``prepared_place`` of FOLDER. The program leads a session, and ends with its parent process PARENT.
"""

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from safetensors.torch import save_file
from tokenizers import Tokenizer

import rdukit
from rdukit.cli import exit_on_error
from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import sha256_of, sha256_of_file, write_json_atomic
from rdukit.pef.checkpoint_files import LATEST, PICTURE_FILE
from rdukit.pef.identity import metadata_of
from rdukit.settings import KERNELS, resolve
from rdukit.system.process import end_group_with_parent
from rdukit_modelbox.artifacts.speech_folder import SPEECH_KEYS, describe_speech
from rdukit_modelbox.contract.box import box_names, find_box_file, load_box
from rdukit_modelbox.preprocessing.arrays import PICTURES
from rdukit_modelbox.preprocessing.picture_processor import preprocessing_of_folder
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_modelbox.verbs.compile import AUTO, LANGUAGE_MODELLING, compile_text_serving, precision_of
from rdukit_serving.models.prepare_folder import PREPARED, PreparedModel, find_prepared, prepared_place
from rdukit_serving.raw_inputs.pictures import write_picture_file
from rdukit_serving.shape import SERVE, Shape
from rdukit_serving.speech.description import SPEECH_FILE
from rdukit_serving.text.chat_template import GENERATION_FILE, TEMPLATE_FILES, TOKENIZER_FILE
from rdukit_serving.text.generation_config import folder_generation
from rdukit_serving.text.short_vectors import stated_dimensions
from rdukit_zoo.checkpoints.folder import (
    HubFolder,
    drawing_nothing,
    identity_of,
    open_hub_folder,
    read_optional_json,
    read_tensors,
    shared_names,
)
from rdukit_zoo.registry import GENERATES_TEXT, SPEECH_TO_TEXT, ModelEntry, SizeValue

WEIGHTS: Final = "weights.safetensors"
#: Folder of the PEF with native kernels.
NATIVE: Final = "native"
#: Beginning of the names of folders that are not finished.
UNFINISHED: Final = ".unfinished-"
#: Longest context that is compiled for models with a longer one, because caches of that length are allocated.
CONTEXT: Final = 2048
#: Largest number of rows per call of a model that takes arrays.
BATCH: Final = 8
#: Numbers of concurrent sequences to try, and largest size of their caches in bytes.
TEXTS: Final = (8, 4, 2, 1)
CACHE_BYTES: Final = 1 << 30
#: Names of models that are also names of folders.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
#: Files of tokenizers in other forms, which are not read.
OTHER_TOKENIZERS: Final = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "vocab.json")
#: Other files that serving reads.
COMPANIONS: Final = (TOKENIZER_FILE, *TEMPLATE_FILES, PICTURE_FILE)


def prepare_hub_folder(
    folder: Path, place: Path, context: int | None = None, precision: str = AUTO
) -> PreparedModel:  # fmt: skip
    """Compile and convert a folder, unless the result exists below ``place``. As ``compile_hub_folder``."""
    made = prepared_place(folder, place, context, precision)
    return find_prepared(made) or compile_hub_folder(folder, made, context, precision)


def compile_hub_folder(folder: Path, made: Path, context: int | None, precision: str) -> PreparedModel:
    """Compile a folder into ``made.parent``, and convert its weights into ``made``, its ``prepared_place``.

    Models that generate text, or that have a tokenizer and make vectors of text, are compiled to take text; others take
    arrays.

    Args:
        context: largest number of tokens of a sequence; ``None``: ``limited_sizes`` chooses.
        precision: ``f32`` or ``bf16``; ``auto``: bf16 to generate texts, f32 for vectors and classes.
    Raises:
        NotFound, InvalidArgument: the folder is of no model of the zoo, or it is damaged.
        CompileError: the compiler refuses.
    """
    hub = open_hub_folder(folder)
    entry = hub.entry
    check_tokenizer_form(folder)
    sizes = limited_sizes(entry, hub.sizes, context)
    generates = entry.task in GENERATES_TEXT
    takes_texts = generates or (entry.text_serving is not None and (folder / TOKENIZER_FILE).is_file())
    box = box_of(entry)
    shape = Shape(
        (load_box(find_box_file(box)).model if box else "") or entry.name, sizes,
        texts_at_once(entry, sizes) if generates else 1 if takes_texts else BATCH,
        precision_of(precision, SERVE) if generates or precision != AUTO else "f32", task=entry.task, purpose=SERVE,
    )  # fmt: skip
    place = made.parent
    place.mkdir(parents=True, exist_ok=True)
    talk = Console(stderr=True)
    with tempfile.TemporaryDirectory(dir=place, prefix=UNFINISHED) as kept, talk.status("") as status:
        unfinished = Path(kept)
        tell = status.update if talk.is_terminal else talk.print
        tell(f"converting {entry.name}'s weights")
        write_checkpoint(hub, sizes, unfinished / "checkpoint")
        tell(f"compiling {entry.name}")
        pef, native_pef = _compile_once(entry, shape, box or entry.name, place, takes_texts)
        found = PreparedModel(box, served_name(hub), str(pef), str(made / "checkpoint"), str(native_pef or ""))
        write_json_atomic(unfinished / PREPARED, asdict(found))
        if faster := find_prepared(made):  # by another process, whose model may be served by now
            return faster
        shutil.rmtree(made, ignore_errors=True)
        unfinished.rename(made)
        unfinished.mkdir()  # the context manager removes it
    return found


def _compile_once(
    entry: ModelEntry, shape: Shape, name: str, place: Path, takes_texts: bool
) -> tuple[Path, Path | None]:  # fmt: skip
    """Compile a model below ``place``, unless a folder of the same model and sizes was compiled before.

    Returns:
        The PEF, and the path for the same PEF with native kernels; None if the setting ``kernels`` is not ``auto``.
    """
    kernels = resolve(KERNELS)
    about = json.dumps([shape.to_metadata(), name, takes_texts, kernels, rdukit.__version__], sort_keys=True)
    made = place / "pefs" / sha256_of(about.encode())[:24]
    is_later = kernels == KERNELS.default
    pef, native_pef = made / name / f"{name}.pef", made / NATIVE / f"{name}.pef" if is_later else None
    if pef.is_file():
        return pef, native_pef
    made.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place, prefix=UNFINISHED) as kept:
        unfinished = Path(kept)
        if takes_texts:
            compile_text_serving(entry, shape, name, unfinished, "o3", "sn30", 1, builds_kernels=not is_later)
        else:
            program = ModelProgram(shape, entry=entry)
            program.compile(name, unfinished, "o3", "sn30", 1, builds_kernels=not is_later)
        if not pef.is_file():  # no other process was faster
            shutil.rmtree(made, ignore_errors=True)
            unfinished.rename(made)
            unfinished.mkdir()  # the context manager removes it
    return pef, native_pef


def check_tokenizer_form(folder: Path) -> None:
    """Refuse a folder whose tokenizer has another form only.

    Raises:
        NotFound: the message has the command that writes ``tokenizer.json``.
    """
    others = [name for name in OTHER_TOKENIZERS if (folder / name).is_file()]
    if others and not (folder / TOKENIZER_FILE).is_file():
        raise NotFound(
            f"{folder} has a tokenizer only as {', '.join(others)}; expected {TOKENIZER_FILE}. Write it with "
            f"python -c \"from transformers import AutoTokenizer as T; T.from_pretrained('{folder}')"
            f".save_pretrained('{folder}')\", which needs the packages transformers and sentencepiece"
        )


def limited_sizes(entry: ModelEntry, sizes: Any, context: int | None = None) -> dict[str, SizeValue]:
    """Return the sizes with at most ``context`` tokens, if that leaves the model's parameters unchanged.

    ``None`` means ``CONTEXT`` for models that generate. Others compute their complete context for each sequence, and
    keep their own.
    """
    found = dict(sizes)
    if "context_length" not in found:
        return found
    usual = CONTEXT if entry.task == LANGUAGE_MODELLING else int(found["context_length"])
    limited = min(int(found.get("positions") or found["context_length"]), context or usual)
    shorter = found | {"context_length": limited}
    if "prompt_length" in found:
        shorter["prompt_length"] = min(int(found["prompt_length"]), limited)
    with torch.device("meta"):
        same = _shapes(entry.build(**found)) == _shapes(entry.build(**shorter))
    return shorter if same else found


def texts_at_once(entry: ModelEntry, sizes: Mapping[str, SizeValue]) -> int:
    """Return the number of concurrent sequences of a language model that keeps its caches small."""
    assert entry.text_serving is not None
    with torch.device("meta"):
        model = entry.text_serving.build(texts=1, **sizes)
    kept = model.state_dict()
    row = sum(buffer.nbytes for name, buffer in model.named_buffers() if name not in kept) // 2
    return next((texts for texts in TEXTS if (texts + 1) * row <= CACHE_BYTES), 1)


def served_name(hub: HubFolder) -> str:
    """Return the model's name in requests: its box's name, or ``model_type`` if the box has several kinds."""
    kind, box = str(hub.config.get("model_type")), box_of(hub.entry) or hub.entry.name
    is_shared = hub.entry.hub is not None and len(hub.entry.hub.architectures) > 1
    return kind if is_shared and _NAME.fullmatch(kind) and not box.startswith(kind) else box


def box_of(entry: ModelEntry) -> str:
    """Return the model's box: the box of the same name, else the first by name with this model; "" if there is none."""
    names = box_names()
    return entry.name if entry.name in names else next(
        (name for name in names if load_box(find_box_file(name)).model == entry.name), ""
    )  # fmt: skip


def _shapes(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}


def write_checkpoint(
    hub: HubFolder, sizes: Mapping[str, SizeValue], target: Path, *, keeps_tied: bool = False,
    head: Mapping[str, torch.Tensor] | None = None, beside: Mapping[str, torch.Tensor] | None = None,
) -> None:  # fmt: skip
    """Write the weights under the model's names, the pointer that boxes read, and the other files that serving reads.

    Args:
        sizes: the folder's, as ``limited_sizes`` gives them.
        target: the folder to create.
        keeps_tied: write a tied tensor once per name, as trainings read it; serving reads one.
        head: replaces the folder's head, for a classifier with other classes.
        beside: an adapter's tensors, which are added to the folder's or replace them.
    Raises:
        NotFound, InvalidArgument: there are no weights, or they are damaged, or of another model, or to be trained and
            not finite.
    """
    target.mkdir()
    stored = {**sizes, "num_classes": hub.sizes["num_classes"]} if head else sizes
    with torch.device("meta"):
        model = hub.entry.build(**stored)
    # Tensors are mapped from the source files; only transposed ones are copied.
    tensors = {name: tensor.contiguous() for name, tensor in read_tensors(hub, model)}
    if keeps_tied:
        odd = next((name for name, value in tensors.items() if not torch.isfinite(value).all()), None)
        if odd is not None:
            raise InvalidArgument(
                f"{hub.path}: {odd} has values that are NaN or infinite; expected finite weights, so download or save "
                "the model again"
            )
        for name, other in shared_names(model, hub.hub).items():
            first, second = (name, other) if name in tensors else (other, name)
            tensors[second] = tensors[first].clone()
    tables = {name for name in model.state_dict() if hub.hub.is_table(name)}
    if tables:
        with drawing_nothing():
            whole = hub.entry.build(**sizes)
        tensors |= {name: value.clone() for name, value in whole.state_dict().items() if name in tables}
    identity = replace(identity_of(hub), sizes=hub.entry.identity(sizes).sizes)
    if head:
        tensors |= head
        identity = replace(identity, classes=())
    tensors |= beside or {}
    metadata = metadata_of(identity)
    save_file(tensors, target / WEIGHTS, metadata=metadata)
    named = {"format": 1, "step": 0, "file": WEIGHTS, "sha256": sha256_of_file(target / WEIGHTS), "previous": None}
    write_json_atomic(target / LATEST, named)
    for name in COMPANIONS:
        if (hub.path / name).is_file():
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(hub.path / name, target / name)
    if hub.entry.task == PICTURES and not head and not (target / PICTURE_FILE).is_file():
        pictures = preprocessing_of_folder(hub)
        if pictures is not None:
            write_picture_file(target, pictures)
    known = read_optional_json(hub.path / GENERATION_FILE)
    ends = known.get("eos_token_id", hub.config.get("eos_token_id"))
    if "vocabulary" not in sizes:
        return
    vocabulary = int(sizes["vocabulary"])
    if hub.entry.task == SPEECH_TO_TEXT:  # old tokenizers lack the timestamps
        write_json_atomic(target / SPEECH_FILE, describe_speech(hub).to_json())
    elif (target / TOKENIZER_FILE).is_file():
        vocabulary = min(vocabulary, Tokenizer.from_file(str(target / TOKENIZER_FILE)).get_vocab_size())
    ignored = SPEECH_KEYS if hub.entry.task == SPEECH_TO_TEXT else ()
    generation = folder_generation(hub.path, hub.config, int(sizes["vocabulary"]), ignored)
    written = {"vocab_size": vocabulary, **({"eos_token_id": ends} if ends is not None else {}), **generation}
    written |= stated_dimensions(hub.config, str(hub.path / "config.json"))
    write_json_atomic(target / GENERATION_FILE, written)


if __name__ == "__main__":
    with exit_on_error():
        _parent, _folder, _made, _precision, *_context = sys.argv[1:]
        end_group_with_parent(int(_parent))
        _found = compile_hub_folder(Path(_folder), Path(_made), int(_context[0]) if _context else None, _precision)
        print(json.dumps(asdict(_found)))
