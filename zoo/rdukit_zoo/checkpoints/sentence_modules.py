"""The files by which sentence-transformers says how a folder's states become a vector: pooling and normalisation.

``modules.json`` lists the steps; each has a folder with a configuration. Code that a folder brings is never run.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit.pef.identity import SizeValue

#: File that lists a folder's modules.
MODULES: Final = "modules.json"
#: Key of a pooling's configuration → the size ``pooling``.
_KEYS: Final[Mapping[str, str]] = {
    "pooling_mode_cls_token": "first", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt", "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last",
}  # fmt: skip
#: Value of the newer key ``pooling_mode`` → the size.
_MODES: Final[Mapping[str, str]] = {
    "cls": "first", "mean": "mean", "max": "max", "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean": "weighted_mean", "lasttoken": "last",
}  # fmt: skip
#: Largest configuration that is read, in bytes.
_MOST_BYTES: Final = 1 << 20


def has_modules(folder: Path) -> bool:
    """Return whether a folder says how its states become vectors."""
    return (folder / MODULES).is_file()


def pooling_of_folder(folder: Path) -> dict[str, SizeValue]:
    """Return the sizes ``pooling`` and ``normalizes`` that a folder states; none where it has no ``modules.json``.

    Raises:
        InvalidArgument: a file is damaged, or it asks for a step that is not computed.
    """
    if not has_modules(folder):
        return {}
    listed = _read(folder / MODULES, list)
    steps = [_step_of(each, folder) for each in listed]
    kinds = [kind for kind, _ in steps]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise InvalidArgument(
            f"{folder / MODULES}: the modules are {', '.join(kinds) or 'none'}; expected Transformer, Pooling and "
            "perhaps Normalize, in this order"
        )
    _check_text(folder)
    pooling = _pooling_of(folder / steps[1][1] / "config.json")
    return {"pooling": pooling, "normalizes": kinds[-1] == "Normalize"}


def files_of_pooling(sizes: Mapping[str, SizeValue]) -> dict[str, Any]:
    """Return the files, path → JSON value, that state a model's pooling; none where it is that of a folder without."""
    pooling, normalizes = sizes.get("pooling", "mean"), bool(sizes.get("normalizes"))
    if pooling == "mean" and not normalizes:
        return {}
    steps = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalizes else [])]
    listed = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(steps)
    ]
    modes = {key: size == pooling for key, size in _KEYS.items()}
    return {MODULES: listed, "1_Pooling/config.json": {"word_embedding_dimension": sizes["width"], **modes}}


def _step_of(entry: Any, folder: Path) -> tuple[str, str]:
    """Return the kind of a module, the last part of its type, and its folder."""
    if not isinstance(entry, dict) or not isinstance(entry.get("type"), str) or not isinstance(entry.get("path"), str):
        raise InvalidArgument(f"{folder / MODULES} is damaged: expected objects with type and path, found {entry!r}")
    path = str(entry["path"])
    if path and (Path(path).name != path or path == ".."):
        raise InvalidArgument(f"{folder / MODULES}: path is {path!r}; expected the name of a folder within this one")
    return str(entry["type"]).rpartition(".")[2], path


def _pooling_of(file: Path) -> str:
    config = _read(file, dict)
    found = [size for key, size in _KEYS.items() if config.get(key)]
    if not found and "pooling_mode" in config:
        modes = config["pooling_mode"]
        named = list(modes) if isinstance(modes, list | tuple) else [modes]
        found = [_MODES.get(str(mode), str(mode)) for mode in named]
    if len(found) != 1 or found[0] not in _MODES.values():
        raise InvalidArgument(
            f"{file}: the poolings are {', '.join(found) or 'none'}; expected exactly one of {', '.join(_KEYS)}"
        )
    return found[0]


def _check_text(folder: Path) -> None:
    """Refuse what changes a text before it is cut into tokens: a default prompt, and lower case by hand.

    Raises:
        InvalidArgument: the folder asks for one of them.
    """
    about = folder / "config_sentence_transformers.json"
    if about.is_file():
        config = _read(about, dict)
        name = config.get("default_prompt_name")
        prompts = config.get("prompts") or {}
        if name and isinstance(prompts, dict) and prompts.get(name):
            raise InvalidArgument(
                f"{about}: default_prompt_name is {name!r}; expected null: write the prompt {prompts[name]!r} into "
                "the texts instead"
            )
    transformer = folder / "sentence_bert_config.json"
    if transformer.is_file() and _read(transformer, dict).get("do_lower_case"):
        tokenizer = folder / "tokenizer.json"
        normalizer = json.dumps(_read(tokenizer, dict, 1 << 28).get("normalizer")) if tokenizer.is_file() else ""
        if '"Lowercase"' not in normalizer and '"lowercase": true' not in normalizer:
            raise InvalidArgument(
                f"{transformer}: do_lower_case is true, and tokenizer.json keeps upper case; expected false, or a "
                "tokenizer with the normalizer Lowercase"
            )


def _read(file: Path, kind: type, most: int = _MOST_BYTES) -> Any:
    try:
        if file.stat().st_size > most:
            raise InvalidArgument(f"{file} has more than {most} bytes; expected a configuration")
        value = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as cause:
        raise InvalidArgument(f"{file} is missing or damaged: {cause}") from cause
    if not isinstance(value, kind):
        raise InvalidArgument(f"{file} is damaged: expected a JSON {'array' if kind is list else 'object'}")
    return value
