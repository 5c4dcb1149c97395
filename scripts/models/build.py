"""Build a case's model, tiny and with seeded random weights, and find inputs that eager torch runs it with."""

import copy
import functools
import importlib
import inspect
import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from check import MAX_PARAMETERS, Fixed, Positional, Probed, difference, shake, still
from families import Case, declare_torchvision
from special import SPECIAL_CONFIGS, SPECIAL_INPUTS
from tiny import LEVELS, tiny_config
from torch import nn

BATCH: Final = 2
LENGTH: Final = 12
#: Parameters of a model of which the rules shrink little more than the depth.
MAX_TINY: Final = 80_000_000
#: Distance of the median gradient from double precision from which on results cannot be judged: a larger picture is
#: tried.
_SENSITIVE: Final = 0.1
#: Inputs that say shapes: numbers of the program, as a graph has one shape.
_FIXED: Final = ("grid_thw", "image_grid_thw", "merge_sizes", "spatial_shapes")


class CannotBuild(Exception):
    """There is no tiny model, or eager torch does not run it; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Built:
    """Function that builds the model, equal each time, and inputs for it."""

    make: Callable[[], nn.Module]
    inputs: dict[str, torch.Tensor]
    labels: dict[str, torch.Tensor]
    parameters: int


def build(case: Case) -> Built:
    """Build the model of ``case``, with inputs that eager torch accepts.

    Raises:
        CannotBuild: with what torch or the library said.
    """
    if case.suite == "transformers":
        return _build_transformer(case)
    return _build_vision(case)


# -- transformers ------------------------------------------------------------------------------------------------------


def _build_transformer(case: Case) -> Built:
    transformers = importlib.import_module("transformers")
    mapping = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    failures: list[str] = []
    for level in LEVELS:
        try:
            kind, head = mapping[case.name], getattr(transformers, case.head)
            config = tiny_config(kind, level, SPECIAL_CONFIGS.get(case.name) if level == "all" else None)
            config = _part_for(head, config)
            if level != "all":
                with torch.device("meta"):
                    count = sum(p.numel() for p in head(copy.deepcopy(config)).parameters())
                if count > MAX_TINY:
                    raise CannotBuild(f"{count:,} parameters")
            made = _making(head, config)
            model = made()
            count = sum(p.numel() for p in model.parameters())
        except CannotBuild as reason:
            failures.append(f"{level}: {reason}")
            continue
        except Exception as reason:  # noqa: BLE001 -- what others wrote raises anything
            failures.append(f"{level}: {type(reason).__name__}: {' '.join(str(reason).split())[:160]}")
            continue
        for inputs in _transformer_inputs(case, model, config):
            try:
                _try(model, inputs)
            except Exception as reason:  # noqa: BLE001 -- what others wrote raises anything
                failures.append(
                    f"{level}, {sorted(inputs)}: {type(reason).__name__}: {' '.join(str(reason).split())[:160]}"
                )
                continue
            labels = _find_labels(model, inputs, config)
            fixed: dict[str, torch.Tensor] = {name: inputs.pop(name) for name in _FIXED if name in inputs}
            return Built(functools.partial(_with_fixed, made, fixed), inputs, labels, count)
    raise CannotBuild(
        failures[0] + (f" (and {len(failures) - 1} more; last: {failures[-1]})" if len(failures) > 1 else "")
        if failures
        else "no inputs are known"
    )


def _with_fixed(make: Callable[[], nn.Module], fixed: dict[str, torch.Tensor]) -> nn.Module:
    return Fixed(make(), fixed) if fixed else make()


def _part_for(head: Any, config: Any) -> Any:
    """Return the part of a composite configuration from which ``head`` is built, such as the text's."""
    wanted = getattr(head, "config_class", None)
    if wanted is None or isinstance(config, wanted):
        return config
    parts = [part for part in vars(config).values() if isinstance(part, wanted)]
    return parts[0] if parts else config


def _making(head: Any, config: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(0)
        model: nn.Module = head(copy.deepcopy(config))
        shake(model)
        return model.float().eval()

    return make


def _try(model: nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        made = Probed(model, False)(**{n: t.clone() for n, t in inputs.items()})
        if not made:
            raise ValueError("no floating output")


def _transformer_inputs(case: Case, model: nn.Module, config: Any) -> Iterator[dict[str, torch.Tensor]]:
    torch.manual_seed(2)
    if case.name in SPECIAL_INPUTS:
        yield SPECIAL_INPUTS[case.name](config)
    names = list(inspect.signature(model.forward).parameters)
    text = getattr(config, "text_config", None) or config
    vocabulary = _first(config, ("vocab_size", "decoder_vocab_size")) or _first(text, ("vocab_size",)) or 99
    ids = torch.randint(3, min(max(vocabulary - 24, 8), 75), (BATCH, LENGTH))
    parts: list[dict[str, torch.Tensor]] = [{}]
    if "decoder_input_ids" in names:
        parts = [{"decoder_input_ids": ids[:, :7].clone()}]
    if any(name in names for name in _FIXED):
        yield from _patches(config, names)
    if "bbox" in names:
        corner = torch.randint(0, 400, (BATCH, LENGTH, 2))
        parts = [{**p, "bbox": torch.cat([corner, corner + 100], -1)} for p in parts] + parts
    pixels = list(_pixels(config)) if "pixel_values" in names else []
    sounds = list(_sounds(config, names))
    main = getattr(model, "main_input_name", "input_ids")
    for part in parts:
        if "input_ids" in names:
            if main != "pixel_values" and not sounds:
                yield {"input_ids": ids, **part}
            for pixel in pixels:
                yield {"input_ids": ids, "pixel_values": pixel, **part}
        for sound in sounds:
            yield {**sound, **part}
            if "input_ids" in names:
                yield {"input_ids": ids, **sound, **part}
        for pixel in pixels:
            yield {"pixel_values": pixel, **part}
        if "pixel_values_videos" in names:
            for pixel in _pixels(config):
                if pixel.dim() == 5:
                    yield {"pixel_values_videos": pixel, **part}
        if "input_ids" in names:
            yield {"input_ids": ids, **part}
        if "inputs_embeds" in names and "input_ids" not in names:
            yield {
                "inputs_embeds": torch.randn(BATCH, LENGTH, _first(config, ("hidden_size", "d_model")) or 32),
                **part,
            }
        if "inputs" in names:
            yield {"inputs": ids, **part}
            for pixel in _pixels(config):
                yield {"inputs": pixel, **part}
        if "hidden_states" in names:
            yield {"hidden_states": torch.randn(BATCH, LENGTH, _first(config, ("hidden_size", "d_model")) or 32)}
        if part and "decoder_input_ids" in part:
            yield dict(part.items())


def _first(config: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _pixels(config: Any) -> Iterator[torch.Tensor]:
    """Return images [B, C, H, W] and videos [B, T, C, H, W] that may fit."""
    vision = next(
        (
            getattr(config, n)
            for n in ("vision_config", "backbone_config", "image_encoder", "encoder")
            if hasattr(getattr(config, n, None), "to_dict")
        ),
        config,
    )
    channels = _first(vision, ("num_channels", "in_channels", "in_chans")) or _first(config, ("num_channels",)) or 3
    size = getattr(vision, "image_size", None) or getattr(config, "image_size", None)
    if isinstance(size, dict):
        size = (size.get("height", 32), size.get("width", 32))
    size = tuple(size) if isinstance(size, list) else size
    sides = list(dict.fromkeys([*([size] if size else []), 32, 64, 128, 224]))
    frames = _first(config, ("num_frames", "frames_per_clip")) or _first(vision, ("num_frames",))
    for side in sides:
        height, width = (side, side) if isinstance(side, int) else tuple(side)[:2]
        if frames:
            yield torch.randn(BATCH, frames, channels, height, width)
        yield torch.randn(BATCH, channels, height, width)
        if not frames and side == sides[0]:
            yield torch.randn(BATCH, 4, channels, height, width)


def _patches(config: Any, names: list[str]) -> Iterator[dict[str, torch.Tensor]]:
    """Two images of 4 by 4 patches, each patch a row, and the shapes that a model wants with them."""
    config = getattr(config, "vision_config", config)
    side = _first(config, ("patch_size",)) or 14
    channels = _first(config, ("in_channels", "num_channels", "in_chans")) or 3
    depth = _first(config, ("temporal_patch_size", "patch_temporal")) or 1
    pixels = "hidden_states" if "hidden_states" in names and "pixel_values" not in names else "pixel_values"
    if "spatial_shapes" in names:
        shapes = torch.tensor([[4, 4]] * BATCH)
        rows = torch.randn(BATCH, 16, channels * side * side)
        yield {pixels: rows, "pixel_attention_mask": torch.ones(BATCH, 16), "spatial_shapes": shapes}
        return
    grid = next(name for name in names if name.endswith("grid_thw"))
    fixed = {grid: torch.tensor([[1, 4, 4]] * BATCH)}
    if "merge_sizes" in names:
        fixed["merge_sizes"] = torch.tensor([1] * BATCH)
    count = 16 * BATCH
    for shape in (
        (count, channels * depth * side * side), (count, channels * side * side), (count, channels, side, side),
        (count, channels, depth, side, side), (count, side * side, channels),
    ):  # fmt: skip
        yield {pixels: torch.randn(shape), **fixed}


def _sounds(config: Any, names: list[str]) -> Iterator[dict[str, torch.Tensor]]:
    audio = next(
        (
            getattr(config, n)
            for n in ("audio_config", "encoder_config", "audio_encoder")
            if hasattr(getattr(config, n, None), "to_dict")
        ),
        config,
    )
    bins = (
        _first(
            audio, ("num_mel_bins", "input_feat_per_channel", "feature_size", "num_mels", "input_dim", "model_in_dim")
        )
        or 80
    )
    longest = _first(audio, ("max_source_positions",)) or 32
    if "input_features" in names:
        yield {"input_features": torch.randn(BATCH, bins, 2 * longest)}
        yield {"input_features": torch.randn(BATCH, 64, bins)}
        yield {"input_features": torch.randn(BATCH, bins, 64)}
        yield {"input_features": torch.randn(BATCH, 1, 256, 64)}
        yield {"input_features": torch.randn(BATCH, 64, 160)}
        yield {"input_features": torch.randn(BATCH, 1, 1001, 64)}
        if "input_features_mask" in names:
            for shape, steps in (((bins, 64), 64), ((64, bins), 64), ((bins, 2 * longest), 2 * longest)):
                mask = torch.ones(BATCH, steps, dtype=torch.long)
                yield {"input_features": torch.randn(BATCH, *shape), "input_features_mask": mask}
    if "input_values" in names:
        frames = _first(audio, ("max_length",)) or 64
        channels = _first(audio, ("audio_channels",)) or 1
        yield {"input_values": torch.randn(BATCH, 1600)}
        yield {"input_values": torch.randn(BATCH, channels, 1920)}
        yield {"input_values": torch.randn(BATCH, 1920)}
        yield {"input_values": torch.randn(BATCH, 1, 16000)}
        yield {"input_values": torch.randn(BATCH, channels, 7680)}
        yield {"input_values": torch.randn(BATCH, frames, bins)}
    if "spectrogram" in names:
        yield {"spectrogram": torch.randn(BATCH, 20, bins)}
    if "audio_values" in names:
        yield {"audio_values": torch.randn(BATCH, 1, 1600)}


def _find_labels(model: nn.Module, inputs: dict[str, torch.Tensor], config: Any) -> dict[str, torch.Tensor]:
    """Return labels for which the model computes its own loss; empty if it computes none."""
    if "labels" not in inspect.signature(model.forward).parameters:
        return {}
    candidates = [inputs[n] for n in ("input_ids", "decoder_input_ids") if n in inputs]
    labels = _first(config, ("num_labels",)) or 2
    candidates += [torch.randint(0, labels, (BATCH,)), torch.randint(3, 20, (BATCH, 5))]
    if (pixels := inputs.get("pixel_values")) is not None and pixels.dim() == 4:
        candidates.append(torch.randint(0, labels, (BATCH, *pixels.shape[-2:])))
    for candidate in candidates:
        try:
            made = model(**inputs, labels=candidate.clone())
            loss = getattr(made, "loss", None)
            if loss is not None and loss.dim() == 0 and bool(torch.isfinite(loss)) and loss.requires_grad:
                return {"labels": candidate.clone()}
        except Exception:  # noqa: BLE001 -- what others wrote raises anything
            continue
    return {}


# -- images ------------------------------------------------------------------------------------------------------------


def _build_vision(case: Case) -> Built:
    declare_torchvision()
    failures: list[str] = []
    too_many = ""
    sensitive = None
    for side, options in itertools.product((64, 96, 128, 160, 192, 224, 256, 299), _vision_options(case)):
        try:
            make = _making_vision(case, side, options)
            if (least := _count_on_meta(make)) > MAX_PARAMETERS:
                too_many = f"{least:,} parameters: too many for this sweep"
                failures.append(too_many)
                continue
            model = make(True)
            count = sum(p.numel() for p in model.parameters())
            inputs = {"x": torch.randn(BATCH, 3, side, side, generator=torch.Generator().manual_seed(3))}
            _try(model, inputs)
            Probed(model.train(), True)(**inputs).backward()
        except Exception as reason:  # noqa: BLE001 -- what others wrote raises anything
            failures.append(f"{side}: {type(reason).__name__}: {' '.join(str(reason).split())[:160]}")
            continue
        built = Built(functools.partial(make, True), inputs, {}, count)
        if not _is_sensitive(model, inputs):
            return built
        sensitive = sensitive or built
    if sensitive is not None:
        return sensitive
    raise CannotBuild(too_many or f"{failures[0]} … {failures[-1]}")


def _is_sensitive(model: nn.Module, inputs: dict[str, torch.Tensor]) -> bool:
    """Return whether rounding moves the median gradient by a tenth, as in batch norms over two numbers."""
    found: list[list[torch.Tensor | None]] = []
    for dtype in (torch.float32, torch.float64):
        net = copy.deepcopy(model).to(dtype).train()
        net.zero_grad()
        try:
            Probed(net, True)(**{name: tensor.to(dtype) for name, tensor in inputs.items()}).backward()
        except RuntimeError:  # something is f32 whatever the model's dtype
            return False
        found.append([parameter.grad for parameter in net.parameters()])
    distances = [difference(a, b) for a, b in zip(*found, strict=True) if a is not None and b is not None]
    return bool(distances) and statistics.median(distances) > _SENSITIVE


def _count_on_meta(make: Callable[[bool], nn.Module]) -> int:
    """Return the number of a model's parameters, without allocating them; 0 if its initialisation needs values."""
    try:
        with torch.device("meta"):
            return sum(p.numel() for p in make(False).parameters())
    except NotImplementedError:
        return 0


def _vision_options(case: Case) -> list[dict[str, Any]]:
    return [{}, {"img_size": 0}, {"depth": 2}] if case.suite == "timm" else [{"image_size": 0}, {}]


def _making_vision(case: Case, side: int, options: dict[str, Any]) -> Callable[[bool], nn.Module]:
    sized = {name: value or side for name, value in options.items()}

    def make(is_real: bool) -> nn.Module:
        torch.manual_seed(0)
        if case.suite == "timm":
            model = importlib.import_module("timm").create_model(case.head, pretrained=False, **sized)
        else:
            more = {"weights_backbone": None} if case.name.startswith(("fcn", "deeplab", "lraspp")) else {}
            model = importlib.import_module("torchvision.models").get_model(case.name, weights=None, **more, **sized)
        if is_real:
            shake(model)
        return Positional(still(model)).eval()

    return make
