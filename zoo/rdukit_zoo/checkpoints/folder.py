"""Hugging Face folders: ``config.json`` and weights, in one file or in shards, as safetensors or as old pickles.

Tensors are read one after another and mapped from the file, so loading needs no more memory than the checkpoint's size.
Pickles are read with ``weights_only``, which runs no code in them.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial, reduce
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.overrides import TorchFunctionMode

from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import write_json_atomic
from rdukit.pef.checkpoint_files import read_header
from rdukit.pef.identity import ModelIdentity, metadata_of, require_same, tokenizer_digest
from rdukit_zoo.checkpoints.hub_format import HubFormat
from rdukit_zoo.checkpoints.quantized import dequantized, quantization_of
from rdukit_zoo.checkpoints.sentence_modules import MODULES, has_modules, pooling_of_folder
from rdukit_zoo.registry import ModelEntry, SizeValue, get_model, model_names

CONFIG: Final = "config.json"
TOKENIZER: Final = "tokenizer.json"
#: File names of weights, tried in this order; ``{}.index.json`` names the shards.
WEIGHTS: Final = ("model.safetensors", "pytorch_model.bin")
#: Dtypes of weights; other dtypes need scales, which only ``quantized`` reads.
DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
#: Bytes of a shard: the default of ``save_pretrained``.
SHARD_BYTES: Final = 50_000_000_000


@dataclass(frozen=True, slots=True)
class HubFolder:
    """A folder whose ``config.json`` describes a model of the zoo."""

    path: Path
    entry: ModelEntry
    hub: HubFormat
    config: Mapping[str, Any]
    sizes: Mapping[str, SizeValue]


def open_hub_folder(path: Path | str) -> HubFolder:
    """Read a folder's ``config.json`` and find its model in the zoo.

    Raises:
        NotFound: the file is missing. InvalidArgument: it is damaged, or the zoo has no model with its architecture or
            values.
    """
    path = Path(path)
    config = _read_json(path / CONFIG)
    quantization = quantization_of(config, path / CONFIG)
    if has_modules(path):
        config = {**config, "architectures": _bodies(config.get("architectures") or [])}
    entry, hub, sizes = _choose_model(config, path / CONFIG)
    if quantization and hub.transposed:
        raise InvalidArgument(
            f"{path / CONFIG}: the weights of {entry.name} are quantized by {quantization.method!r}; expected float32, "
            "bfloat16 or float16, because this model's files hold them transposed"
        )
    if _has_another_head(path, hub, sizes):
        sizes = {**sizes, "is_tied": False}
    if hub.sizes_of_folder:
        sizes = {**sizes, **hub.sizes_of_folder(path)}
    elif pooling_of_folder(path) not in ({}, {"pooling": "mean", "normalizes": False}):
        raise InvalidArgument(
            f"{path / MODULES}: vectors of {entry.name} are the means of its last states; expected mean_tokens without "
            f"Normalize, or no {MODULES}, to serve the folder for its texts only"
        )
    return HubFolder(path, entry, hub, config, sizes)


def _bodies(architectures: Sequence[str]) -> list[str]:
    """Return the architectures without their heads, where the zoo has those: a folder of vectors does not use heads."""
    known = {name for entry in map(get_model, model_names()) if entry.hub for name in entry.hub.architectures}
    bodies = [re.sub(r"(For|Model$).*", "Model", str(name)) for name in architectures]
    return [body if body in known else str(name) for body, name in zip(bodies, architectures, strict=True)]


def _choose_model(
    config: Mapping[str, Any], source: Path
) -> tuple[ModelEntry, HubFormat, dict[str, SizeValue]]:  # fmt: skip
    """Return the first model that supports a configuration, the format of its folders, and the sizes."""
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise InvalidArgument(
            f'{source}: architectures is {architectures!r}; expected names such as ["GPT2LMHeadModel"]'
        )
    if odd := [key for key, value in config.items() if _is_odd_number(key, value)]:
        raise InvalidArgument(
            f"{source}: {odd[0]} is {config[odd[0]]!r}; expected a finite number, a whole one for sizes"
        )
    *others, (last, last_hub) = models_of(architectures, source)
    for entry, hub in others:
        with suppress(InvalidArgument, KeyError, TypeError, ValueError):
            sizes = hub.sizes_of_config(config)
            return entry, hub.of_sizes(sizes), sizes
    try:
        sizes = last_hub.sizes_of_config(config)
    except KeyError as cause:
        raise InvalidArgument(f"{source} lacks {cause}, which transformers writes; save the model again") from cause
    except (TypeError, ValueError) as cause:
        raise InvalidArgument(
            f"{source} has a value of another type ({cause}); expected numbers for sizes: {_odd_sizes(config)}"
        ) from cause
    return last, last_hub.of_sizes(sizes), sizes


#: Ends of the keys of sizes.
_SIZE_ENDS: Final = ("_size", "_layers", "_heads", "n_layer", "n_head", "n_embd", "n_positions", "_embeddings")


def _is_odd_number(key: str, value: object) -> bool:
    """Return whether a value is a number that no model has: not finite, or for sizes negative or with a fraction."""
    if isinstance(value, float) and not math.isfinite(value):
        return True
    return key.endswith(_SIZE_ENDS) and isinstance(value, int | float) and (value < 0 or value != int(value))


def _odd_sizes(config: Mapping[str, Any]) -> str:
    """Return the sizes of a configuration that are not numbers."""
    odd = [key for key, value in config.items() if key.endswith(_SIZE_ENDS) and not isinstance(value, int)]
    return ", ".join(f"{key} is {config[key]!r}" for key in odd) or "none is missing"


def models_of(architectures: Sequence[str], source: Path) -> list[tuple[ModelEntry, HubFormat]]:
    """Return the models of the zoo with one of the architectures, and their formats, the most special one first.

    Raises:
        InvalidArgument: there is none; the message names the nearest architecture.
    """
    known: dict[str, list[tuple[ModelEntry, HubFormat]]] = {}
    for entry in map(get_model, model_names()):
        for architecture in entry.hub.architectures if entry.hub else ():
            assert entry.hub is not None
            known.setdefault(architecture, []).append((entry, entry.hub))
    found = next((known[name] for name in architectures if name in known), None)
    if found is None:
        stems = {re.split("For|Model", name)[0].lower(): name for name in sorted(known)}
        asked = [re.split("For|Model", str(name))[0].lower() for name in architectures]
        near = [stems[stem] for name in asked for stem in get_close_matches(name, stems, 1, 0.5)]
        raise InvalidArgument(
            f"{source}: no zoo model has an architecture of {list(architectures) or 'none'}"
            + (f"; the nearest known architecture is {near[0]}" if near else "")
            + f"; expected one of {', '.join(sorted(known))}"
        )
    return sorted(found, key=lambda each: len(each[1].architectures))


def _has_another_head(path: Path, hub: HubFormat, sizes: Mapping[str, SizeValue]) -> bool:
    """Return whether the files have separate values for a tensor that the sizes tie; as in transformers, these are
    used.

    Raises:
        InvalidArgument: they have, but the model cannot have a separate head.
    """
    if not hub.tied or not sizes.get("is_tied", True):
        return False
    try:
        weight_files(path)
    except NotFound:
        return False
    with open_weights(path) as tensors:
        stored = {hub.name_of(name, {*hub.tied, *hub.tied.values()}): (name, read) for name, read in tensors}
        for name, other in hub.tied.items():
            if name not in stored or other not in stored or torch.equal(stored[name][1](), stored[other][1]()):
                continue
            if "is_tied" not in sizes:
                raise InvalidArgument(
                    f"{path}: {stored[name][0]} differs from {stored[other][0]}, but this model has one tensor for both"
                )
            return True
    return False


def identity_of(folder: HubFolder) -> ModelIdentity:
    """Return the identity in a folder's ``config.json`` and ``tokenizer.json``; names such as LABEL_0 do not count.

    Raises:
        InvalidArgument: the tokenizer is damaged.
    """
    named = folder.config.get("id2label") or {}
    classes = _class_names(named, folder.path / CONFIG) if "num_classes" in folder.sizes else ()
    is_named = any(name != f"LABEL_{number}" for number, name in enumerate(classes))
    tokenizer = folder.path / TOKENIZER
    digest = tokenizer_digest(tokenizer.read_text()) if tokenizer.is_file() else ""
    return replace(folder.entry.identity(folder.sizes), classes=classes if is_named else (), tokenizer=digest)


def _class_names(named: object, config: Path) -> tuple[str, ...]:
    """Return the names of ``id2label`` in the order of their numbers.

    Raises:
        InvalidArgument: the numbers are not 0, 1, and so on, or a name is no text. Two classes may have one name.
    """
    found = {str(key): value for key, value in named.items()} if isinstance(named, Mapping) else None
    names = [found.get(str(number)) for number in range(len(found))] if found is not None else [None]
    if not all(isinstance(name, str) for name in names):
        raise InvalidArgument(
            f'{config}: id2label is {str(named)[:80]}; expected the name of each class: {{"0": …, "1": …, …}}'
        )
    return tuple(map(str, names))


def check_stored_identity(folder: HubFolder) -> None:
    """Refuse weights whose identity differs from ``config.json`` or from the folder's tokenizer.

    Our files have an identity; those of ``save_pretrained`` do not.

    Raises:
        NotFound: there are no weights. InvalidArgument: the message names each differing value; or as in
            ``identity_of``.
    """
    known = identity_of(folder)
    for file in weight_files(folder.path):
        stored = read_header(file).identity if file.suffix == ".safetensors" else None
        if stored is not None:
            require_same(
                stored, known, f"the weights {file.name}", f"{CONFIG} with {TOKENIZER}",
                "restore these files, or use weights of the model that they describe",
            )  # fmt: skip


def load_hub_folder(
    path: Path | str, build: Callable[..., torch.nn.Module] | None = None, rounds_tables: bool = True
) -> torch.nn.Module:
    """Return the folder's model with its weights, which stay mapped from the file until they are written.

    Parameters have the widest dtype among the weights and ``dtype`` in ``config.json``. So do tables, such as those of
    angles, unless ``rounds_tables`` is false: then they are float32, as in checkpoints. Buffers that are exact keep the
    files' dtype. ``build(**sizes)`` creates another module with the same parameters, such as one for serving.

    Raises:
        NotFound, InvalidArgument: as in ``open_hub_folder`` and ``read_tensors``.
    """
    folder = open_hub_folder(path)
    with drawing_nothing():
        model = (build or folder.entry.build)(**folder.sizes)
    model.load_state_dict(dict(read_tensors(folder, model)), assign=True, strict=False)
    tie_again(model, folder)
    hub = folder.hub
    exact = {
        name: value for name, value in model.state_dict().items()
        if hub.is_exact(name) or (hub.is_table(name) and not rounds_tables)
    }  # fmt: skip
    model.to(_dtype_of(folder, model))
    model.load_state_dict(exact, assign=True, strict=False)
    return model


def _dtype_of(folder: HubFolder, model: torch.nn.Module) -> torch.dtype:
    """Return the compute dtype of a folder's model.

    Raises:
        InvalidArgument: ``config.json`` names a dtype that weights cannot have.
    """
    found = {parameter.dtype for parameter in model.parameters()}
    named = folder.config.get("dtype") or folder.config.get("torch_dtype")
    if named is not None:
        name = str(named).removeprefix("torch.")
        found.add(_require_dtype(getattr(torch, name, name), f"{folder.path / CONFIG}: dtype"))
    return reduce(torch.promote_types, found)


def _require_dtype(found: object, what: str) -> torch.dtype:
    if not isinstance(found, torch.dtype) or found not in DTYPES:
        legal = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise InvalidArgument(f"{what} is {str(found).removeprefix('torch.')}; expected one of {legal}")
    return found


def read_tensors(folder: HubFolder, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of each parameter and persistent buffer of ``model``, in the order of the files.

    Raises:
        NotFound: there are no weights. InvalidArgument: a file is damaged, a shape is wrong, or names are missing or
            superfluous (the message lists them); or as in ``check_stored_identity``.
    """
    check_stored_identity(folder)
    state = model.state_dict()
    wanted = {name: tuple(tensor.shape) for name, tensor in state.items() if not folder.hub.is_table(name)}
    missing, left_over = set(wanted), []
    seen: set[str] = set()
    shared = shared_names(model, folder.hub)
    with open_weights(folder.path) as stored:
        for stored_name, read in stored:
            name = folder.hub.name_of(stored_name, wanted)
            if stored_name in seen:
                raise InvalidArgument(
                    f"{folder.path}: two files have the tensor {stored_name}; expected it in one: remove the files "
                    "that belong to another save"
                )
            seen.add(stored_name)
            if name is None or (name in shared and name not in missing):
                continue
            if name not in wanted:
                left_over.append(stored_name)
                continue
            tensor = folder.hub.convert(name, read())
            _require_dtype(tensor.dtype, f"{folder.path}: the dtype of {stored_name}")
            if tuple(tensor.shape) != wanted[name]:
                raise InvalidArgument(
                    f"{folder.path}: {stored_name} has shape {tuple(tensor.shape)}; {folder.entry.name} with this "
                    f"config.json has {wanted[name]}: expected weights and config.json of one model"
                )
            missing.discard(name)
            yield name, tensor
    # A single name of a shared tensor is enough.
    missing = {name for name in missing if name not in shared or shared[name] in missing}
    if missing or left_over:
        raise InvalidArgument(
            f"{folder.path} does not fit {folder.entry.name}: missing {_some(missing)}; left over {_some(left_over)}; "
            "expected weights and config.json of one model"
        )


@contextmanager
def open_weights(path: Path) -> Iterator[Iterator[tuple[str, Callable[[], torch.Tensor]]]]:
    """Open a folder's weights: yield name and a function that reads the tensor, file after file.

    Quantized weights are read as numbers, as ``quantized`` says.

    Raises:
        NotFound: there are none. InvalidArgument: a file or the index of shards is damaged, or weights are quantized
            in a way that is not read.
    """
    config = _read_json(path / CONFIG) if (path / CONFIG).is_file() else {}
    quantization = quantization_of(config, path / CONFIG)
    with ExitStack() as stack:
        stored = _stored_tensors(weight_files(path), stack)
        yield dequantized(stored, quantization, path) if quantization else stored


def weight_files(path: Path) -> list[Path]:
    """Return the files that hold a folder's weights, shards in order of their names.

    Raises:
        NotFound: there are none, or one that the index names is missing. InvalidArgument: the index is damaged.
    """
    for name in WEIGHTS:
        if (path / name).is_file():
            return [path / name]
        index = path / f"{name}.index.json"
        if index.is_file():
            try:
                shards = sorted({str(shard) for shard in _read_json(index)["weight_map"].values()})
            except (KeyError, AttributeError) as cause:
                raise InvalidArgument(f"{index} is damaged: it has no weight_map") from cause
            for shard in shards:
                if Path(shard).name != shard or not (path / shard).is_file():
                    raise NotFound(f"{index} names {shard}, which is not in the folder")
            return [path / shard for shard in shards]
    raise NotFound(f"{path} has no weights; expected {', '.join(WEIGHTS)}, or either with .index.json and its shards")


def _stored_tensors(files: Iterable[Path], stack: ExitStack) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    for file in files:
        if file.suffix == ".safetensors":
            try:
                stream = stack.enter_context(safe_open(file, framework="pt"))
                for name in stream.keys():  # noqa: SIM118  (the stream is no mapping)
                    yield name, partial(stream.get_tensor, name)
            except SafetensorError as cause:
                raise InvalidArgument(f"{file} is damaged; expected an intact file, so copy it again") from cause
        else:
            try:
                values = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            except Exception as cause:  # torch's reader raises many kinds for files that are no checkpoint
                raise InvalidArgument(
                    f"{file} is damaged, or contains objects other than tensors, which could run code; expected "
                    "tensors by name, best as model.safetensors: save_pretrained(…, safe_serialization=True)"
                ) from cause
            for name, value in values.items():
                if isinstance(value, torch.Tensor):
                    yield name, value.detach


def save_hub_folder(
    model: torch.nn.Module, entry: ModelEntry, sizes: Mapping[str, SizeValue], path: Path,
    classes: Sequence[str] = (), tokenizer: str = "",
) -> None:  # fmt: skip
    """Write ``config.json`` and ``model.safetensors`` as ``save_pretrained`` does, tied tensors once, and the identity.

    ``classes``: names of a classifier's classes, in order. ``tokenizer``: result of ``tokenizer_digest``.

    Raises:
        InvalidArgument: the model has no such format.
    """
    if entry.hub is None:
        raise InvalidArgument(f"model {entry.name!r} has no Hugging Face format")
    path.mkdir(parents=True, exist_ok=True)
    hub = entry.hub.of_sizes(sizes)
    shared = shared_names(model, hub)
    tensors = {
        hub.stored_name(name): hub.convert(name, tensor.detach()).contiguous()
        for name, tensor in model.state_dict().items()
        if name not in shared and not hub.is_table(name)
    }
    unfinished = path / f".{WEIGHTS[0]}.unfinished"
    identity = replace(entry.identity(sizes), classes=tuple(classes), tokenizer=tokenizer)
    save_file(tensors, unfinished, metadata={"format": "pt", **metadata_of(identity)})
    unfinished.replace(path / WEIGHTS[0])
    kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values() if tensor.is_floating_point()}
    config = {**hub.config_of_sizes(sizes), "dtype": min(kinds, default="float32")}
    if classes:
        config |= {"id2label": dict(enumerate(classes)), "label2id": {name: k for k, name in enumerate(classes)}}
    write_json_atomic(path / CONFIG, config)
    for name, value in (hub.files_of_sizes(sizes) if hub.files_of_sizes else {}).items():
        (path / name).parent.mkdir(exist_ok=True)
        write_json_atomic(path / name, value)


_DRAWS: Final = {torch.Tensor.normal_, torch.Tensor.uniform_} | {
    getattr(torch.nn.init, name)
    for name in ("kaiming_normal_", "kaiming_uniform_", "normal_", "uniform_", "xavier_normal_", "xavier_uniform_")
}


class drawing_nothing(TorchFunctionMode):
    """Leaves new weights uninitialized, so that weights that a checkpoint replaces take neither time nor memory.

    This applies only to parameters: elsewhere, ``trunc_normal_`` would draw again until its memory is within the
    bounds.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        drawn = args[0] if args else (kwargs or {}).get("tensor")
        if function in _DRAWS and isinstance(drawn, torch.nn.Parameter):
            return drawn
        return function(*args, **(kwargs or {}))


def shared_names(model: torch.nn.Module, hub: HubFormat) -> dict[str, str]:
    """Return the names of the model that share another's tensor; empty if the sizes do not tie them."""
    state = model.state_dict(keep_vars=True)
    return {name: other for name, other in hub.tied.items() if name in state and state[name] is state.get(other)}


def tie_again(model: torch.nn.Module, folder: HubFolder) -> None:
    """Tie names to one parameter again, after each got a separate tensor."""
    with torch.device("meta"):
        fresh = shared_names(folder.entry.build(**folder.sizes), folder.hub) if folder.hub.tied else {}
    for name, other in fresh.items():
        place, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(place), attribute, model.get_parameter(other))


def read_optional_json(path: Path) -> dict[str, Any]:
    """Return the object in a folder's JSON file; empty if there is no such file.

    Raises:
        InvalidArgument: the file is damaged, or holds no object.
    """
    return _read_json(path) if path.is_file() else {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError as cause:
        raise NotFound(f"there is no {path}; expected a Hugging Face folder with it") from cause
    except UnicodeDecodeError as cause:
        raise InvalidArgument(
            f"{path} is damaged: it is not UTF-8; expected JSON, as transformers writes it"
        ) from cause
    except (OSError, ValueError, RecursionError) as cause:
        raise InvalidArgument(
            f"{path} is damaged: {cause}; expected a JSON object, as transformers writes it"
        ) from cause
    if not isinstance(value, dict):
        raise InvalidArgument(f"{path} is damaged: it holds no JSON object; expected one, as transformers writes it")
    return value


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    return (", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")) or "nothing"
