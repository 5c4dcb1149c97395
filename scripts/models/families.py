"""Models to try: Hugging Face's architectures, timm's families, torchvision's models."""

import importlib
from dataclasses import dataclass
from typing import Final

import torch

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """A model to try: ``suite`` is transformers, timm or torchvision; ``head`` the class or variant that is built."""

    suite: str
    name: str
    head: str


#: Mappings of transformers' automatic classes, the first that has an architecture decides.
_HEADS: Final = (
    "MODEL_FOR_CAUSAL_LM", "MODEL_FOR_MASKED_LM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", "MODEL_FOR_SPEECH_SEQ_2_SEQ",
    "MODEL_FOR_CTC", "MODEL_FOR_IMAGE_CLASSIFICATION", "MODEL_FOR_AUDIO_CLASSIFICATION",
    "MODEL_FOR_VIDEO_CLASSIFICATION", "MODEL_FOR_SEMANTIC_SEGMENTATION", "MODEL_FOR_DEPTH_ESTIMATION",
    "MODEL_FOR_OBJECT_DETECTION", "MODEL_FOR_UNIVERSAL_SEGMENTATION", "MODEL_FOR_IMAGE_TEXT_TO_TEXT",
    "MODEL_FOR_MULTIMODAL_LM", "MODEL_FOR_SEQUENCE_CLASSIFICATION", "MODEL_FOR_TIME_SERIES_PREDICTION",
    "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION", "MODEL_FOR_BACKBONE", "MODEL",
)  # fmt: skip


def transformers_cases() -> list[Case]:
    """Return a case for each kind of model in transformers, with its most common head."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    kinds = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES
    found = []
    for kind in sorted(kinds):
        for mapping in _HEADS:
            names = getattr(auto, f"{mapping}_MAPPING_NAMES")
            if kind in names:
                head = names[kind]
                found.append(Case("transformers", kind, head if isinstance(head, str) else head[0]))
                break
    return found


def timm_cases() -> list[Case]:
    """Return a case for the smallest model of each family (module)."""
    timm = importlib.import_module("timm")
    found = []
    for family in timm.list_modules():
        names = timm.list_models(module=family)
        if names:
            found.append(Case("timm", family, min(names, key=_timm_size)))
    return found


def _timm_size(name: str) -> tuple[int, int, str]:
    words = (
        "test_",
        "femto",
        "atto",
        "zepto",
        "pico",
        "nano",
        "micro",
        "xxs",
        "xx_small",
        "mini",
        "tiny",
        "xs",
        "small",
        "_s",
        "b0",
        "_0",
        "18",
        "base",
        "_b",
    )
    rank = next((i for i, word in enumerate(words) if word in name), len(words))
    heavy = any(word in name for word in ("large", "huge", "giant", "xl", "1024", "512", "384", "448"))
    return (int(heavy), rank, name)


def torchvision_cases() -> list[Case]:
    """Return a case for each model that classifies or segments images."""
    models = importlib.import_module("torchvision.models")
    segmentation = models.segmentation
    names = [*models.list_models(module=models), *models.list_models(module=segmentation)]
    return [Case("torchvision", name, name) for name in sorted(names)]


def declare_torchvision() -> None:
    """Register forms for two operators of torchvision, so that it can be imported if its compiled ones do not load."""
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(schema)  # type: ignore[no-untyped-call]
        torch._torchvision_stand_in = library  # type: ignore[attr-defined]  # keeps it alive
