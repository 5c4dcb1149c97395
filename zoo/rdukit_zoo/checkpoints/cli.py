"""``rdukit checkpoint``: what checkpoints hold, how two differ, and Hugging Face folders in both directions."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
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
from rdukit_zoo.checkpoints.folder import (
    CONFIG,
    drawing_nothing,
    load_hub_folder,
    open_hub_folder,
    open_weights,
    save_hub_folder,
)
from rdukit_zoo.registry import SizeValue, get_model

#: What a box's checkpoint names its newest file by, and how its file marks parameters.
LATEST, PREFIX = "latest.json", "parameter/"

Readers = Mapping[str, Callable[[], torch.Tensor]]


@click.group(cls=ExtensibleGroup)
def checkpoint() -> None:
    """Show, compare and convert checkpoints: of boxes, safetensors files, Hugging Face folders.

    Example: rdukit checkpoint show ~/models/gpt2
    """


@checkpoint.command("show")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def show(path: Path, as_json: bool) -> None:
    """Show a checkpoint's model, if it says so, and its tensors with shapes and dtypes.

    Example: rdukit checkpoint show model.safetensors
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
@click.option("--model", "model_name", help="Model of the zoo that a checkpoint without config.json is of.")
@click.option("--variant", help="Its published sizes.")
@click.option("--size", "sizes", multiple=True, metavar="NAME=VALUE", help="One of its sizes; may be repeated.")
def convert(source: Path, target: Path, model_name: str | None, variant: str | None, sizes: tuple[str, ...]) -> None:
    """Convert a Hugging Face folder to a safetensors file, or with --model a checkpoint to such a folder.

    Example: rdukit checkpoint convert ~/models/gpt2 gpt2.safetensors
    """
    if target.exists():
        raise Conflict(f"{target} exists already; name another target")
    if (source / CONFIG).is_file():
        model = load_hub_folder(source)
        tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        with atomic_target(target) as path:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        click.echo(f"wrote {target}: {len(tensors)} tensors of {open_hub_folder(source).entry.name}")
        return
    if model_name is None:
        raise InvalidArgument(f"{source} has no {CONFIG}; name its model of the zoo by --model")
    entry = get_model(model_name)
    chosen = entry.check_sizes(
        (entry.sizes_of(variant) if variant else {}) | dict(_size(word, entry.sizes) for word in sizes)
    )
    with open_tensors(source) as readers:
        tensors = {name: read() for name, read in readers.items()}
        with drawing_nothing():
            model = entry.build(**chosen)
        try:
            model.load_state_dict(tensors)
        except RuntimeError as cause:
            raise InvalidArgument(f"{source} is not of {model_name} with these sizes: {cause}") from cause
        save_hub_folder(model, entry, chosen, target)
    click.echo(f"wrote {target}: {len(tensors)} tensors")


@contextmanager
def open_tensors(path: Path) -> Iterator[Readers]:
    """Open a checkpoint: name → a function that reads the tensor, of a box's folder, a file or a Hugging Face folder.

    Raises:
        NotFound: there is none. InvalidArgument: it is damaged.
    """
    if (path / LATEST).is_file():
        try:
            named = json.loads((path / LATEST).read_text())["file"]
        except (ValueError, KeyError, TypeError) as cause:
            raise InvalidArgument(f"{path / LATEST} is damaged: {cause!r}") from cause
        path = path / Path(str(named)).name
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
            raise InvalidArgument(f"{path} is no safetensors file, or damaged: {cause}") from cause
        ours = [name for name in names if name.startswith(PREFIX)] or names
        yield {name.removeprefix(PREFIX): lambda name=name: stream.get_tensor(name) for name in ours}  # type: ignore[misc]


def _model_of(path: Path) -> dict[str, Any]:
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
        InvalidArgument: it has another form.
    """
    name, _, text = word.partition("=")
    kind = type(known.get(name, 0))
    try:
        return name, {"true": True, "false": False}[text] if kind is bool else kind(text)
    except (ValueError, KeyError) as cause:
        raise InvalidArgument(f"--size {word}: legal is NAME=VALUE with a value of type {kind.__name__}") from cause
