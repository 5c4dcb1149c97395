"""``rdukit checkpoint``: show and compare checkpoints, and convert Hugging Face folders in both directions."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from rdukit.cli.commands import ExtensibleGroup
from rdukit.cli.tables import Table, print_tables
from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit.files.atomic import atomic_target
from rdukit.pef.checkpoint_files import LATEST, PREFIX, checkpoint_file, find_differences, read_header
from rdukit.pef.identity import ModelIdentity, metadata_of, require_same, tokenizer_digest
from rdukit_zoo.checkpoints.folder import (
    CONFIG,
    TOKENIZER,
    drawing_nothing,
    identity_of,
    load_hub_folder,
    open_hub_folder,
    open_weights,
    save_hub_folder,
)
from rdukit_zoo.checkpoints.stamp import find_identity, identity_said, stamp_checkpoint, trained_sizes
from rdukit_zoo.registry import ModelEntry, SizeValue, get_model

Readers = Mapping[str, Callable[[], torch.Tensor]]


@click.group(cls=ExtensibleGroup, extended_by="rdukit.checkpoint.commands")
def checkpoint() -> None:
    """Show, compare and convert checkpoints, safetensors files and Hugging Face folders.

    Example: rdukit checkpoint show ~/models/gpt2

    Example: rdukit checkpoint show ~/models/my-llama --json
    """


@checkpoint.command("show")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def show(path: Path, as_json: bool) -> None:
    """Show a checkpoint's model, if it is named there, and its tensors with shapes and dtypes.

    Example: rdukit checkpoint show model.safetensors

    Example: rdukit checkpoint show ~/models/my-llama --json
    """
    with open_tensors(path) as readers:
        tensors = {name: read() for name, read in readers.items()}
        about = {
            "tensors": len(tensors), "elements": sum(tensor.numel() for tensor in tensors.values()),
            "bytes": sum(tensor.nbytes for tensor in tensors.values()), **_model_of(path),
        }  # fmt: skip
        rows = [(name, _form(tensor), _dtype(tensor)) for name, tensor in tensors.items()]
    if as_json:
        listed = [{"name": name, "shape": json.loads(shape), "dtype": dtype} for name, shape, dtype in rows]
        click.echo(json.dumps({**about, "listed": listed}))
        return
    shown = tuple((key, f"{value:,}" if isinstance(value, int) else str(value)) for key, value in about.items())
    print_tables([Table("", ("", ""), shown), Table("tensors", ("NAME", "SHAPE", "DTYPE"), tuple(rows))])


@checkpoint.command("diff")
@click.argument("one", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def diff(one: Path, other: Path, as_json: bool) -> None:
    """Compare two checkpoints by name; the exit status is 1 if they differ.

    Example: rdukit checkpoint diff before.safetensors after.safetensors

    Example: rdukit checkpoint diff ~/models/gpt2 gpt2.safetensors --json
    """
    with open_tensors(one) as mine, open_tensors(other) as theirs:
        rows = [row for name in sorted({*mine, *theirs}) if (row := _difference(name, mine, theirs)) is not None]
        count = len({*mine, *theirs})
    if as_json:
        click.echo(json.dumps({"tensors": count, "different": [{"name": n, "difference": d} for n, d in rows]}))
    elif rows:
        print_tables([Table("", ("NAME", "DIFFERENCE"), tuple(rows))])
    else:
        click.echo(f"{count} tensors are the same")
    if rows:
        raise click.exceptions.Exit(1)


@checkpoint.command("convert")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--model", "model_name", help="Zoo model of a checkpoint without config.json.")
@click.option("--variant", help="Its published sizes.")
@click.option("--size", "sizes", multiple=True, metavar="NAME=VALUE", help="One of the model's sizes; may be repeated.")
def convert(source: Path, target: Path, model_name: str | None, variant: str | None, sizes: tuple[str, ...]) -> None:
    """Convert a Hugging Face folder to a safetensors file, or with --model a checkpoint to such a folder.

    Example: rdukit checkpoint convert ~/models/gpt2 gpt2.safetensors

    Example: rdukit checkpoint convert gpt2.safetensors ~/models/gpt2-again --model gpt2
    """
    if target.exists():
        raise Conflict(f"{target} exists already; name another target")
    if (source / CONFIG).is_file():
        folder = open_hub_folder(source)
        entry = get_model(model_name or folder.entry.name)
        chosen = _chosen_sizes(entry, folder.sizes, variant, sizes)
        require_same(
            ModelIdentity(folder.entry.name, folder.sizes), ModelIdentity(entry.name, chosen), CONFIG, "the options",
            "leave out --model, --variant and --size, because the folder determines them",
        )  # fmt: skip
        model = load_hub_folder(source, rounds_tables=False)
        tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        with atomic_target(target) as path:
            kept = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(kept, path, metadata=metadata_of(identity_of(folder)))
        click.echo(f"wrote {target}: {len(tensors)} tensors of {folder.entry.name}")
        return
    if model_name is None:
        raise InvalidArgument(f"{source} has no {CONFIG}; name its model of the zoo by --model")
    entry = get_model(model_name)
    header = None if source.is_dir() and not (source / LATEST).is_file() else read_header(checkpoint_file(source))
    identity = None if header is None else identity_said(header, entry)
    written = {} if header is None or identity is None else {**header.trained_sizes, **identity.sizes}
    chosen = _chosen_sizes(entry, written, variant, sizes)
    if identity is None:
        click.echo(f"{source} does not identify its model; using the given sizes", err=True)
    else:
        require_same(
            identity, entry.identity(chosen), "the checkpoint", "the options", "leave out --size and --variant"
        )
    with open_tensors(source) as readers:
        tensors = {name: read() for name, read in readers.items()}
        with drawing_nothing():
            model = entry.build(**chosen)
        wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
        differences = find_differences({name: tensor.shape for name, tensor in tensors.items()}, wanted)
        if differences is not None:
            raise InvalidArgument(
                f"{source} does not fit {model_name} with these sizes: {differences}; give the checkpoint's sizes by "
                "--variant or --size"
            )
        model.load_state_dict(tensors)
        lost = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, tensors[name])]
        if lost:
            raise InvalidArgument(
                f"tie_word_embeddings: {', '.join(lost)} of {source} is a separate tensor, but {model_name} with "
                "these sizes shares it; add --size is_tied=false if the model has that size"
            )
        known = entry.identity(chosen) if identity is None else identity
        tokenizer = _tokenizer_beside(source, known)
        save_hub_folder(model, entry, chosen, target, known.classes, known.tokenizer)
        if tokenizer is not None:
            shutil.copyfile(tokenizer, target / TOKENIZER)
    click.echo(f"wrote {target}: {len(tensors)} tensors")


@checkpoint.command("stamp")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--model", "model_name", required=True, help="Zoo model of the checkpoint.")
@click.option("--variant", help="Its published sizes.")
@click.option("--size", "sizes", multiple=True, metavar="NAME=VALUE", help="One of the model's sizes; may be repeated.")
@click.option("--class", "classes", multiple=True, metavar="NAME", help="Name of a class, in order; may be repeated.")
@click.option("--tokenizer", type=click.Path(path_type=Path, exists=True), help="Its tokenizer.json.")
def stamp(
    path: Path, model_name: str, variant: str | None, sizes: tuple[str, ...], classes: tuple[str, ...],
    tokenizer: Path | None,
) -> None:  # fmt: skip
    """Write a model's identity into a checkpoint of an earlier version, or of your own program.

    Missing sizes are those that a training box recorded, or otherwise the model's defaults.

    Example: rdukit checkpoint stamp model.safetensors --model gpt2 --variant small

    Example: rdukit checkpoint stamp model.safetensors --model logreg
    """
    entry = get_model(model_name)
    chosen = _chosen_sizes(entry, trained_sizes(path), variant, sizes)
    if classes and len(classes) != chosen.get("num_classes", len(classes)):
        raise InvalidArgument(f"--class has {len(classes)} names; expected {chosen['num_classes']}, as num_classes")
    digest = tokenizer_digest(tokenizer.read_text()) if tokenizer else ""
    identity = replace(entry.identity(chosen), classes=classes, tokenizer=digest)
    files = stamp_checkpoint(path, entry, chosen, identity)
    click.echo(f"wrote the identity of {model_name} into {', '.join(file.name for file in files)}")


def _tokenizer_beside(source: Path, identity: ModelIdentity) -> Path | None:
    """Return the tokenizer next to a checkpoint, which must be the one of its identity; None without one.

    Raises:
        InvalidArgument: the tokenizer differs or is damaged.
    """
    file = (source if source.is_dir() else source.parent) / TOKENIZER
    if not file.is_file() or (source.is_file() and not identity.tokenizer):
        return None
    there = replace(identity, tokenizer=tokenizer_digest(file.read_text()))
    require_same(identity, there, "the checkpoint", str(file), "add the tokenizer with which it was trained")
    return file


def _chosen_sizes(
    entry: ModelEntry, known: Mapping[str, SizeValue], variant: str | None, words: tuple[str, ...]
) -> dict[str, SizeValue]:  # fmt: skip
    """Return all sizes: those of the options, of the variant, ``known`` ones, and the model's defaults."""
    named = dict(_size(word, entry.sizes) for word in words)
    kept = {name: value for name, value in known.items() if name in entry.sizes}
    return entry.check_sizes(kept | (entry.sizes_of(variant) if variant else {}) | named)


@contextmanager
def open_tensors(path: Path) -> Iterator[Readers]:
    """Open a checkpoint: name → a function that reads the tensor, of a box's folder, a file or a Hugging Face folder.

    Raises:
        NotFound: the checkpoint is missing. InvalidArgument: it is damaged.
    """
    if (path / LATEST).is_file():
        path = checkpoint_file(path, verify=False)
    if path.is_dir():
        with open_weights(path) as stored:
            yield dict(stored)
        return
    if not path.is_file():
        raise NotFound(f"there is no checkpoint {path}")
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(safe_open(path, framework="pt"))
            names = list(stream.keys())
        except SafetensorError as cause:
            raise InvalidArgument(f"{path} is not a safetensors file, or is damaged; expected an intact one") from cause
        ours = [name for name in names if name.startswith(PREFIX)] or names
        yield {name.removeprefix(PREFIX): lambda name=name: stream.get_tensor(name) for name in ours}  # type: ignore[misc]


def _model_of(path: Path) -> dict[str, Any]:
    identity = find_identity(path)
    if identity is not None:
        sizes = " ".join(f"{key}={value}" for key, value in identity.sizes.items())
        known = {
            "classes": ", ".join(identity.classes), "columns": ", ".join(identity.columns),
            "tokenizer": identity.tokenizer,
        }  # fmt: skip
        return {"model": identity.architecture, "sizes": sizes, **{k: v for k, v in known.items() if v}}
    if not (path / CONFIG).is_file():
        return {}
    folder = open_hub_folder(path)
    sizes = " ".join(f"{key}={value}" for key, value in folder.sizes.items())
    return {"model": folder.entry.name, "architecture": ", ".join(folder.config["architectures"]), "sizes": sizes}


def _difference(name: str, mine: Readers, theirs: Readers) -> tuple[str, str] | None:
    if name not in mine or name not in theirs:
        return name, f"only in the {'first' if name in mine else 'second'}"
    one, other = mine[name](), theirs[name]()
    if one.shape != other.shape or one.dtype != other.dtype:
        return name, f"{_dtype(one)} {_form(one)} against {_dtype(other)} {_form(other)}"
    if torch.equal(one, other):
        return None
    return name, f"by up to {float((one.double() - other.double()).abs().max()):.6g}"


def _form(tensor: torch.Tensor) -> str:
    return json.dumps(list(tensor.shape))


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _size(word: str, known: Mapping[str, SizeValue]) -> tuple[str, SizeValue]:
    """Return name and value of ``name=value``, of the type that the size has.

    Raises:
        InvalidArgument: the text has another form.
    """
    name, _, text = word.partition("=")
    kind = type(known.get(name, 0))
    try:
        return name, {"true": True, "false": False}[text] if kind is bool else kind(text)
    except (ValueError, KeyError) as cause:
        raise InvalidArgument(f"--size {word}: expected NAME=VALUE with a value of type {kind.__name__}") from cause
