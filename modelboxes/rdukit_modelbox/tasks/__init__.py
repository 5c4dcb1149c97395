"""Tasks: a model's data, scores and infer verb, one file each; the boxes' parameters are YAML files."""

from importlib import import_module
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit_modelbox.tasks.base import Task

#: Classes of tasks, by name.
TASKS: Final = {
    "classification": "rdukit_modelbox.tasks.classification:Classification",
    "embedding": "rdukit_modelbox.tasks.passages:TextEmbedding",
    "forecasting": "rdukit_modelbox.tasks.forecasting:Forecasting",
    "generative": "rdukit_modelbox.tasks.generative:Generative",
    "image-classification": "rdukit_modelbox.tasks.images:ImageClassification",
    "language-modelling": "rdukit_modelbox.tasks.language_modelling:LanguageModelling",
    "masked-language-modelling": "rdukit_modelbox.tasks.passages:MaskedLanguageModelling",
    "regression": "rdukit_modelbox.tasks.regression:Regression",
    "segmentation": "rdukit_modelbox.tasks.segmentation:Segmentation",
    "sequence-classification": "rdukit_modelbox.tasks.passages:SequenceClassification",
    "self-supervised": "rdukit_modelbox.tasks.self_supervised:SelfSupervised",
}


def task_of(name: str) -> Task:
    """Return the task called ``name``; imports only its file.

    Raises:
        InvalidArgument: the task is unknown.
    """
    if name not in TASKS:
        raise InvalidArgument(f"task {name!r} is not valid; expected {', '.join(TASKS)}")
    module, _, attribute = TASKS[name].partition(":")
    task: Task = getattr(import_module(module), attribute)()
    return task
