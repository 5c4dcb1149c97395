"""Compile: the box's model → a PEF, to train or to serve."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import nn

from rdukit.errors import InvalidArgument
from rdukit.pef import Pef, SectionType, read_pef
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.contract.box import Box
from rdukit_modelbox.contract.models import chosen_sizes, entry_of, model_name_of
from rdukit_modelbox.tasks.adapters import share_adapters
from rdukit_modelbox.tasks.program import ModelProgram, tensor_names
from rdukit_modelbox.verbs.compile_progress import BUILD, CompileProgress
from rdukit_modelbox.verbs.context import VerbContext, VerbResult
from rdukit_serving.device.parameters import read_constants
from rdukit_serving.shape import SERVE, TRAIN, Shape, TextSizes
from rdukit_zoo.checkpoints.folder import drawing_nothing
from rdukit_zoo.registry import GENERATES_TEXT, ModelEntry, Sizes
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.graph import FwdGraph
from sambaflow.sessions.compiling import SILENT, followed_compiles

LANGUAGE_MODELLING: Final = "language-modelling"
#: The precision is that of the purpose: see ``precision_of``.
AUTO: Final = "auto"
#: Weights have the dtype of the precision.
SAME: Final = "same"
#: Largest number of sequences that one PEF can generate at once: each has a row of the caches, and each width a graph.
MAX_TEXTS: Final = 64


@dataclass(frozen=True, slots=True)
class TextExtras:
    """Options of a PEF for texts: sizes for speculation and adapters (see ``TextSizes``), and ``weight_dtype``: int8,
    int4 or that of the precision.
    """

    guesses: int = 0
    adapters: int = 0
    adapter_rank: int = 0
    weight_dtype: str = SAME


def run_compile(
    context: VerbContext, parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path], output: Path
) -> VerbResult:
    """Write ``<output>/<box>/<box>.pef``.

    Raises:
        CompileError: the compiler refuses; the message says why.
        InvalidArgument: the sizes do not fit together, or the model cannot serve.
    """
    box = context.box
    entry = entry_of(box)
    shape = shape_to_compile(box, entry, parameters)
    members = int(parameters.get("members", 1))
    if members > 1 and shape.accumulation_steps > 1:
        raise InvalidArgument(
            f"accumulation_steps is {shape.accumulation_steps} and members is {members}; expected one of them to be "
            "1, because members already add their batches in a step",
            parameter="accumulation_steps",
        )
    mode, target = str(parameters.get("mode", box.mode)), str(parameters.get("target", box.target))
    num_tiles = int(parameters.get("num_tiles", 4))
    progress = CompileProgress(context)
    progress(BUILD, 0, 0)
    is_text = shape.task in GENERATES_TEXT and shape.purpose == SERVE
    program = None if is_text else ModelProgram(shape, entry=entry)
    context.check_cancelled()
    if program is None:
        extras = TextExtras(
            int(parameters.get("speculation", 0)), int(parameters.get("adapters", 0)),
            int(parameters.get("adapter_rank", 0)), str(parameters.get("weight_dtype", SAME)),
        )  # fmt: skip
        with followed_compiles(progress):
            path = compile_text_serving(entry, shape, box.name, output, mode, target, num_tiles, extras)
    else:
        with followed_compiles(progress):
            path = program.compile(box.name, output, mode, target, num_tiles, members)
        shape = program.shape
    loaded = read_pef(path)
    if read_constants(loaded.pef):
        check_repeatable_state(entry, shape.sizes)
    context.log(
        f"{len(loaded.pef.sections)} sections, {len(loaded.natives)} native kernels, {path.stat().st_size} bytes"
    )
    return VerbResult(figures_of(loaded.pef, len(loaded.natives), shape), {"pef": path})


def shape_to_compile(box: Box, entry: ModelEntry, parameters: Mapping[str, ParameterValue]) -> Shape:
    """Return the shape that the parameters describe; a box leaves out parameters without a choice.

    Raises:
        InvalidArgument: a size that the model does not have.
    """
    purpose = str(parameters.get("purpose", TRAIN))
    if purpose not in {TRAIN, SERVE}:
        raise InvalidArgument(f"purpose {purpose!r} is not valid; expected {TRAIN}, {SERVE}")
    precision = precision_of(str(parameters.get("precision", "bf16")), purpose)
    return Shape(
        model=model_name_of(box), sizes=chosen_sizes(box, entry, parameters),
        batch_size=int(parameters.get("batch_size", 1)), precision=precision,
        task=entry.task, purpose=purpose, optimizer=str(parameters.get("optimizer", "sgd")),
        clips_gradients=bool(parameters.get("clip_gradients", False)),
        accumulation_steps=int(parameters.get("accumulation_steps", 1)) if purpose == TRAIN else 1,
        layer_decay=float(parameters.get("layer_decay", 1.0)) if purpose == TRAIN else 1.0,
        lora_rank=int(parameters.get("lora_rank", 0)) if purpose == TRAIN else 0,
        lora_alpha=float(parameters.get("lora_alpha", 16.0)),
    )  # fmt: skip


def precision_of(precision: str, purpose: str) -> str:
    """Return the precision; ``auto`` means f32 to train and bf16 to serve."""
    if precision != AUTO:
        return precision
    return "bf16" if purpose == SERVE else "f32"


def figures_of(pef: Pef, native_kernels: int, shape: Shape) -> dict[str, object]:
    """Return what compile answers about a PEF.

    ``projected_step_seconds`` is the cost model's, for the target chip, without evaluation. With graphs for several
    numbers of rows it refers to the largest.
    """
    stepping = (pef.graphs[shape.graphs[max(shape.graphs)]],) if shape.graphs else pef.main_graphs()
    step = {number for graph in stepping for number in graph.schedule}
    return {
        "sections": len(pef.sections),
        "section_types": {str(kind): n for kind in SectionType if (n := sum(s.type is kind for s in pef.sections))},
        "mode": pef.mode,
        "target": pef.arch,
        "precision": pef.precision,
        "purpose": shape.purpose,
        "batch_size": shape.batch_size,
        "projected_step_seconds": sum(s.cost.seconds for s in pef.sections if s.id in step),
        "native_kernels": native_kernels,
    }


def check_repeatable_state(entry: ModelEntry, sizes: Sizes) -> None:
    """Refuse a model with random values that no checkpoint holds: training would draw others than serving.

    Raises:
        InvalidArgument: two builds of the model differ; the message names the difference.
    """
    found = []
    for seed in (0, 1):
        utils.set_seed(seed)
        found.append(unsaved_tensors(entry.build(**sizes)))
    lost = [name for name, value in found[0].items() if not torch.equal(value, found[1][name])]
    if lost:
        raise InvalidArgument(
            f"{', '.join(lost[:5])} is random and not in checkpoints; make it a buffer with "
            "register_buffer(..., persistent=True)"
        )


def unsaved_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's tensors that no checkpoint holds: buffers with ``persistent=False`` and plain attributes."""
    kept = model.state_dict()
    found = {name: buffer for name, buffer in model.named_buffers() if name not in kept}
    for path, module in model.named_modules():
        held = {key: value for key, value in vars(module).items() if isinstance(value, torch.Tensor)}
        found.update({f"{path}.{key}" if path else key: value for key, value in held.items()})
    return found


def compile_text_serving(
    entry: ModelEntry, shape: Shape, name: str, folder: Path, mode: str, target: str, num_tiles: int,
    extras: TextExtras | None = None, *, builds_kernels: bool = True,
) -> Path:  # fmt: skip
    """Compile to ``<folder>/<name>/<name>.pef`` and return that path.

    Args:
        builds_kernels: False: native kernels are left to ``build_pef``.

    Raises:
        InvalidArgument: the model does not read texts.
        CompileError: the compiler refuses.
    """
    serving = entry.text_serving
    if serving is None:
        raise InvalidArgument(f"model {entry.name!r} has no text_serving: it cannot be compiled with purpose=serve")
    is_language = entry.task in GENERATES_TEXT
    if is_language and shape.batch_size > MAX_TEXTS:
        raise InvalidArgument(
            f"batch_size is {shape.batch_size}; with purpose=serve expected 1 to {MAX_TEXTS} concurrent texts",
            field="batch_size",
        )
    context, prompt, vocabulary = (
        int(shape.sizes[name]) for name in (serving.context, serving.prompt, serving.vocabulary)
    )
    extras = extras or TextExtras()
    text = TextSizes(context, prompt, vocabulary)
    if is_language:
        rank = extras.adapter_rank if extras.adapters else 0
        text = replace(
            text, texts=shape.batch_size, guesses=extras.guesses, adapters=extras.adapters, adapter_rank=rank
        )
    if (serving.start or serving.audio) and text.adapters:
        raise InvalidArgument(
            f"{entry.name} does not support adapters; expected adapters=0, or a model without an encoder"
        )
    if serving.start:
        text = replace(text, source=prompt, start=int(shape.sizes[serving.start]))
    if serving.audio:
        mels, states = int(shape.sizes[serving.audio.mels]), int(shape.sizes[serving.audio.states])
        heads = str(shape.sizes[serving.audio.alignment])
        text = replace(text, mels=mels, frames=2 * states, alignment=len(heads.split(",")) if heads else 0)
    session = samba.session
    session.reset()
    with drawing_nothing():  # a PEF holds no weights
        model = (serving.build(texts=text.texts, **shape.sizes) if is_language else serving.build(**shape.sizes)).eval()
    tensors = tensor_names(model)
    if text.adapters:
        share_adapters(model, text.adapters, text.adapter_rank, text.vocabulary)
    samba.from_torch_model_(model)
    graphs = text_graphs(text) if is_language else {}
    if not text.frames:
        embedded = samba.zeros(1, text.prompt, dtype=torch.int64, name="text")
        graphs["embed"] = (embedded, samba.zeros(1, text.prompt, name="shares"))
    traced = {graph: session.trace_multigraph(model, inputs, graph) for graph, inputs in graphs.items()}
    for graph, inputs in graphs.items():
        session.add_graph(FwdGraph(inputs, traced[graph][0], graph))
    outputs = ("logits",) if is_language else ("output",)
    found = replace(
        shape, batch_size=text.texts, task=entry.task, text=text, outputs=outputs,
        identity=entry.identity(shape.sizes), tensors=tensors,
    )  # fmt: skip
    return Path(
        session.compile_multigraph(
            name=name,
            config_dict={
                "output_folder": str(folder), "pef_name": name, "optim_level": mode, "arch": target,
                "num_tiles": num_tiles, "precision": shape.precision, "log_level": SILENT,
                "weight_dtype": "" if extras.weight_dtype == SAME else extras.weight_dtype,
                "builds_kernels": builds_kernels,
            },
            pef_metadata=found.to_metadata(),
        )
    )  # fmt: skip


def text_graphs(text: TextSizes) -> dict[str, tuple[samba.SambaTensor, ...]]:
    """Return the inputs of each graph that continues texts: ``prefill_T`` reads T tokens of one, ``decode_B`` takes B
    tokens, each of a text of its own or several of one, ``copy`` gives a text to another row of the caches, where there
    are several and texts may begin alike. If the model has an audio encoder, ``listen`` encodes the audio of a row's
    text, and ``align`` returns which part of the audio each token of the text is about.
    """

    def inputs(graph: str, **shapes: tuple[int, ...]) -> tuple[samba.SambaTensor, ...]:
        return tuple(samba.zeros(*sizes, dtype=torch.int64, name=f"{graph}_{name}") for name, sizes in shapes.items())

    def tokens(graph: str, batch: int, count: int, **more: tuple[int, ...]) -> tuple[samba.SambaTensor, ...]:
        each = (batch, count)
        found = inputs(graph, tokens=each, positions=each, rows=(batch,), targets=each, **more)
        ranks = text.adapters * text.adapter_rank
        return (*found, samba.zeros(batch, 1, ranks, name=f"{graph}_shares")) if ranks else found

    graphs = {f"prefill_{count}": tokens(f"prefill_{count}", 1, count, last=(1,)) for count in text.prompt_lengths}
    graphs |= {f"decode_{batch}": tokens(f"decode_{batch}", batch, 1) for batch in text.widths}
    if text.frames:
        heard = samba.zeros(1, text.mels, text.frames, name="listen_features")
        aligned = {"align": tokens("align", 1, text.prompt)} if text.alignment else {}
        return graphs | {"listen": (heard, *inputs("listen", row=(1,)))} | aligned
    return graphs | ({"copy": inputs("copy", source=(1,), target=(1,))} if text.texts > 1 and not text.source else {})
