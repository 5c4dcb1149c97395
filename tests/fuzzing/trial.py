"""Run programs on the device, alone or compiled together, and say of each whether it is right, refused or wrong."""

import collections
import contextlib
import copy
import io
import os
import re
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch

from fuzzing import judge
from fuzzing.judge import IllegalProgram, Results
from fuzzing.programs import KINDS, Program, build_module, draw_inputs, draw_seeds
from rdukit.errors import CompileError, InvalidArgument, RdukitError, TraceError, UnknownTensor, UnsupportedOperator
from rdukit.pef.file import read_pef
from rdukit.pef.units import KERNEL_CHECK
from rdukit.pef.units import Outcome as Kernels
from rdukit_compiler import TracedGraph
from sambaflow import samba
from sambaflow.samba.optim.base import compiler_groups
from sambaflow.samba.sambatensor import SambaTensor
from sambaflow.sessions.compiling import compile_traced


class Outcome(StrEnum):
    """Outcome of a program."""

    RIGHT = "right"
    REFUSED = "refused"
    WRONG = "wrong"
    #: An error that is none of ours, or one of ours later than the compile.
    BARE = "bare"
    #: torch itself refuses it: not counted.
    ILLEGAL = "illegal"


@dataclass(frozen=True, slots=True)
class Way:
    """A way to compile programs: ``o0``, ``o1`` or ``o3``; portable or native kernels; f32 or bf16.

    ``special``: a program that is right runs again with each kind of special numbers among its inputs.
    """

    mode: str = "o3"
    kernels: str = "portable"
    precision: str = "f32"
    special: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome; ``cause`` is equal for failures that are likely to have the same reason.

    ``refused``: reasons why the kernel check refused native kernels of the program.
    """

    outcome: Outcome
    cause: str = ""
    detail: str = ""
    refused: tuple[str, ...] = ()


class _Prepared:
    """A program as a model with inputs, ready to be traced; its class's name makes all names its own."""

    def __init__(self, program: Program, name: str) -> None:
        self.program = program
        self.expected = judge.expected_results(program)
        self.module = build_module(program, name)
        self.torch_module = copy.deepcopy(self.module)
        self.plain = draw_inputs(program)
        self.inputs = tuple(
            samba.from_torch_tensor(value.clone(), name=f"{name.lower()}_{key}") for key, value in self.plain.items()
        )
        outputs = self.torch_module(**{key: value.clone() for key, value in self.plain.items()})
        self.seeds = draw_seeds(program, outputs)
        samba.from_torch_model_(self.module)
        trains = any(seed is not None for seed in self.seeds) and any(p.requires_grad for p in self.module.parameters())
        self.optimizer: Any = samba.optim.SGD(self.module.parameters(), lr=judge.LEARNING_RATE) if trains else None


def judge_alone(program: Program, way: Way, folder: Path) -> Verdict:
    """Compile a program by itself and compare it with torch."""
    return judge_together([program], way, folder)[0]


def judge_together(programs: Sequence[Program], way: Way, folder: Path) -> list[Verdict]:
    """Compile programs into one PEF, and compare each with torch.

    A program that is refused is left out of the PEF. If the PEF cannot be made, each is judged alone.
    """
    verdicts: list[Verdict | None] = [None] * len(programs)
    with _quiet(way):
        samba.session.reset()
        ready: dict[int, tuple[_Prepared, TracedGraph]] = {}
        for position, program in enumerate(programs):
            try:
                prepared = _Prepared(program, f"Module{position}")
            except IllegalProgram as cause:
                verdicts[position] = Verdict(Outcome.ILLEGAL, "", str(cause))
                continue
            try:
                traced = samba.session._trace(prepared.module, prepared.inputs, None)
                groups = compiler_groups([prepared.optimizer]) if prepared.optimizer is not None else ()
                ready[position] = (prepared, TracedGraph(traced.graph, groups))
            except Exception as cause:  # noqa: BLE001 - whatever it is, it is what is looked for
                verdicts[position] = _failure(cause, "trace")
        if ready:
            _judge_traced(programs, ready, verdicts, way, folder)
        samba.session.reset()
    return [verdict or Verdict(Outcome.BARE, "no verdict") for verdict in verdicts]


def _judge_traced(
    programs: Sequence[Program],
    ready: dict[int, tuple[_Prepared, TracedGraph]],
    verdicts: list[Verdict | None],
    way: Way,
    folder: Path,
) -> None:
    config = {
        "output_folder": str(folder / str(os.getpid())),  # a sweep's two processes judge at the same time
        "pef_name": "fuzz",
        "log_level": "error",
        "precision": way.precision,
        way.mode: True,
    }
    inference = all(prepared.optimizer is None for prepared, _ in ready.values())
    try:
        pef = compile_traced([traced for _, traced in ready.values()], "fuzz", config, inference, {})
    except Exception as cause:  # noqa: BLE001 - whatever it is, it is what is looked for
        if len(programs) == 1:
            verdicts[0] = _failure(cause, "compile")
            return
        for position in ready:
            verdicts[position] = judge_together([programs[position]], way, folder)[0]
        return
    refused = _refusals(pef)
    for position, (prepared, _) in ready.items():
        verdict = _judge_run(prepared, pef, way)
        graph = str(prepared.module.name)
        if way.special and verdict.outcome is Outcome.RIGHT and not prepared.program.special:
            verdict = _judge_specials(prepared.program, f"Module{position}", pef, way)
        verdicts[position] = replace(verdict, refused=tuple(refused.get(graph, ())))


def _judge_run(prepared: _Prepared, pef: str, way: Way) -> Verdict:
    program, expected = prepared.program, prepared.expected
    try:
        found = _run(prepared, pef)
        if program.special:
            fault = judge.find_special_fault(program, expected, found, way.precision)
            causes = [f"{program.special}: {fault}"] if fault else []
        else:
            causes = list(map(str, judge.find_differences(program, expected, found, way.precision)))
    except IllegalProgram as cause:
        return Verdict(Outcome.ILLEGAL, "", str(cause))
    except Exception as cause:  # noqa: BLE001 - whatever it is, it is what is looked for
        return _failure(cause, "run")
    if not causes:
        return Verdict(Outcome.RIGHT)
    kind = ":".join(causes[0].split(":")[: 2 if program.special else 1])
    return Verdict(Outcome.WRONG, re.sub(r"[\d.]+", "", kind), "\n".join(causes))


def _judge_specials(program: Program, name: str, pef: str, way: Way) -> Verdict:
    """Run a compiled program with each kind of special numbers; the first wrong one decides."""
    for kind in KINDS:
        try:
            prepared = _Prepared(replace(program, special=kind), name)
        except IllegalProgram:  # torch refuses these numbers
            continue
        if all(not value.is_floating_point() for value in prepared.plain.values()):
            break
        verdict = _judge_run(prepared, pef, way)
        if verdict.outcome not in {Outcome.RIGHT, Outcome.ILLEGAL}:
            return verdict
    return Verdict(Outcome.RIGHT)


def _refusals(pef: str) -> dict[str, list[str]]:
    """Return by graph why kernels of it are not used after the kernel check: they differ, or could not be compared."""
    loaded = read_pef(pef).pef
    verdicts: dict[str, str] = loaded.metadata.get(KERNEL_CHECK, {})
    found: dict[str, list[str]] = collections.defaultdict(list)
    for section in loaded.sections:
        verdict = verdicts.get(section.kernel, "")
        if verdict.startswith((str(Kernels.REFUSED), str(Kernels.NOT_JUDGED))) and verdict not in found[section.graph]:
            found[section.graph].append(verdict)
    return found


def _run(prepared: _Prepared, pef: str) -> Results:
    module, optimizer, found = prepared.module, prepared.optimizer, Results()
    outputs = samba.session.trace(module, prepared.inputs, optimizer, pef)
    graph = str(module.name)
    if optimizer is not None:
        for output, seed in zip(outputs, prepared.seeds, strict=True):
            if seed is not None:
                with contextlib.suppress(UnknownTensor):  # nothing that is trained leads to it: gradients say whether
                    output.sn_grad = seed
    for step in range(judge.STEPS):
        made = samba.session.run(prepared.inputs, outputs, graph_name=graph)
        for position, output in enumerate(made):
            found[f"step {step + 1} output {position}"] = output.data
        if optimizer is not None:
            for name, parameter in module.named_parameters():
                found[f"step {step + 1} gradient {name}"] = _gradient(parameter)
        samba.session.to_cpu(module)
        found.update(judge.read_state(module, step))
    return found


def _gradient(parameter: Any) -> torch.Tensor | None:
    try:
        gradient: torch.Tensor | SambaTensor | None = parameter.sn_grad
    except RdukitError:  # it has none: torch must have none either
        return None
    return gradient.data.clone() if gradient is not None else None


def _failure(cause: Exception, where: str) -> Verdict:
    """Return the verdict on an error: ours at the compile is a refusal, unless it passes on what Python said."""
    text = str(cause)
    kind = re.sub(r"(0x)?[0-9a-f]*\d[\d.]*|'[^']*'|\[[^]]*\]|\([^)]*\)", "…", text.splitlines()[0] if text else "")[
        :160
    ]
    is_ours = isinstance(cause, CompileError | TraceError | UnsupportedOperator | InvalidArgument) and where != "run"
    passed_on = isinstance(cause, TraceError) and re.search(r"\b[A-Z]\w*(Error|Exception)\b", text)
    outcome = Outcome.REFUSED if is_ours and not passed_on and not text.startswith("internal") else Outcome.BARE
    detail = text if outcome is Outcome.REFUSED else "".join(traceback.format_exception(cause))
    return Verdict(outcome, f"{where} {type(cause).__name__}: {kind}", detail)


@contextlib.contextmanager
def _quiet(way: Way) -> Iterator[None]:
    """Set the kernels of the way, and print nothing."""
    before = os.environ.get("RDUKIT_KERNELS")
    os.environ["RDUKIT_KERNELS"] = way.kernels
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            if before is None:
                del os.environ["RDUKIT_KERNELS"]
            else:
                os.environ["RDUKIT_KERNELS"] = before


def count_outcomes(verdicts: Sequence[Verdict]) -> collections.Counter[str]:
    """Return how many of each outcome, refusals and failures by cause as well."""
    counted: collections.Counter[str] = collections.Counter(str(v.outcome) for v in verdicts)
    counted.update(f"{v.outcome}: {v.cause}" for v in verdicts if v.cause)
    return counted
