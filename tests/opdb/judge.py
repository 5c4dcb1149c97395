"""Run a case on the device and in eager torch, and judge what the device computed."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._pytree import tree_flatten

from opdb.cases import Call, Case, is_tensor
from opdb.compare import Results, State, Verdict, compare, compare_forms, compare_rounded, is_as_near
from opdb.natives import native_operators
from rdukit.errors import RdukitError, UnknownTensor
from rdukit.pef import SectionType
from rdukit.pef.file import read_pef
from sambaflow import samba
from support.programs import load_model

#: Runs of an operator that draws random numbers, whose results are compared by mean and deviation.
RANDOM_RUNS: Final = 60
#: Operators that return memory as they find it: only shape and dtype are compared.
UNINITIALISED: Final = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
#: dtypes of outputs that a gradient may come from.
_FOLLOWED: Final = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})


def judge(op: Any, case: Case, sample: Any, folder: Path) -> Verdict:
    """Run a case in this process and judge it. Files go to ``folder``."""
    natives: list[str] = []
    return replace(_judge(op, case, sample, folder, natives), natives=tuple(natives))


def _judge(op: Any, case: Case, sample: Any, folder: Path, natives: list[str]) -> Verdict:
    rounded = case.dtype == "bf16"
    call = Call(op, sample, parameters=case.training, rounded=rounded)
    if case.training and not list(call.parameters()):
        return Verdict(State.SKIPPED, text="no differentiable argument")
    try:
        truth = _eager(call, [])
    except Exception as cause:  # noqa: BLE001 - whatever torch refuses is no case
        return Verdict(State.SKIPPED, text=f"torch: {type(cause).__name__}: {cause}"[:200])
    if case.training and not any(_is_seeded(t) for t in truth.outputs):
        return Verdict(State.SKIPPED, text="no differentiable output")
    seeds = _seeds(truth.outputs)
    try:
        if case.training:
            truth = _eager(call, seeds)
    except Exception as cause:  # noqa: BLE001 - likewise
        return Verdict(State.SKIPPED, text=f"torch, gradient: {type(cause).__name__}: {cause}"[:200])
    is_random = _is_random(call)
    device = Call(op, sample, parameters=case.training, rounded=rounded)
    device.copies = _overwrites(call)
    try:
        run = _load(device, case, seeds, folder, natives)
        made = run()
        if is_random:
            return _judge_random(op, call, run, made, truth)
    except RdukitError as cause:
        return Verdict(State.REFUSED, cause.code, cause.message)
    except Exception as cause:  # noqa: BLE001 - this is what is looked for
        return Verdict(State.BARE, type(cause).__name__, _first_line(cause))
    finally:
        samba.session.reset()
    if op.name in UNINITIALISED:
        return compare_forms(made, truth)
    if not rounded:
        verdict = compare(made, truth)
        with contextlib.suppress(Exception):
            if verdict.state is State.WRONG and is_as_near(made, truth, _eager_double(op, case, sample, seeds)):
                return Verdict(State.RIGHT)
        return verdict
    with contextlib.suppress(Exception):
        return compare_rounded(made, truth, _eager_rounded(op, case, sample, seeds))
    return compare_rounded(made, truth, None)


def _first_line(cause: Exception) -> str:
    return (str(cause).splitlines() or [""])[0][:300]


def _load(
    call: Call, case: Case, seeds: list[torch.Tensor], folder: Path, natives: list[str]
) -> Callable[[], Results]:  # fmt: skip
    """Compile and load; returns a call that runs once. ``natives`` gets the operators that are native."""
    samba.session.reset()
    inputs = tuple(samba.from_torch_tensor(t.clone(), name=f"in{i}") for i, t in enumerate(call.given))
    options: dict[str, Any] = {"precision": "f32"} if case.dtype == "f32" else {}
    loaded = load_model(
        call, inputs, folder, (lambda p: samba.optim.SGD(p, lr=0.0)) if case.training else None,
        optim_level=case.mode, host_fallback=case.host_fallback, **options,
    )  # fmt: skip
    natives += native_operators(loaded.pef)
    parameters = list(call.parameters())
    outputs = loaded.outputs
    is_followed = any(section.type is SectionType.BCKWD for section in read_pef(loaded.pef).pef.sections)

    def run() -> Results:
        if not case.training:
            return Results([t.data for t in loaded.run()], [])
        needed = [seed if _is_seeded(seed) else None for seed in seeds]
        if not is_followed:  # nothing of what forward returns depends on a parameter
            return Results([t.data for t in loaded.run(section_types=["fwd"])], [None] * len(parameters))
        made = loaded.run(section_types=["fwd", "bckwd"], grad_of_outputs=needed)
        assert len(made) == len(outputs)
        return Results([t.data for t in made], [_gradient(p) for p in parameters])

    return run


def _gradient(parameter: Any) -> torch.Tensor | None:
    try:
        made = parameter.sn_grad
    except UnknownTensor:  # no gradient reaches it
        return None
    return None if made is None else samba.to_torch(made)


def _eager(call: Call, seeds: list[torch.Tensor]) -> Results:
    """Return what torch computes; gradients only where there are ``seeds``."""
    torch.manual_seed(0)
    made = call(*(t.clone() for t in call.given))
    outputs = [t for t in tree_flatten(made)[0] if is_tensor(t)]
    if not seeds:
        return Results(outputs, [])
    return Results([t.detach() for t in outputs], _gradients(call, outputs, seeds))


def _gradients(call: Call, outputs: list[torch.Tensor], seeds: list[torch.Tensor]) -> list[torch.Tensor | None]:
    pairs = [(t, seed) for t, seed in zip(outputs, seeds, strict=True) if t.requires_grad]
    return list(
        torch.autograd.grad(
            [t for t, _ in pairs], list(call.parameters()), [seed.to(t.dtype) for t, seed in pairs], allow_unused=True
        )
    )


def _eager_rounded(op: Any, case: Case, sample: Any, seeds: list[torch.Tensor]) -> Results:
    """Return what torch computes in bf16."""
    return _eager_in(Call(op, sample, parameters=case.training, rounded=True).bfloat16(), torch.bfloat16, case, seeds)


def _eager_double(op: Any, case: Case, sample: Any, seeds: list[torch.Tensor]) -> Results:
    """Return what torch computes in f64."""
    return _eager_in(Call(op, sample, parameters=case.training, rounded=False).double(), torch.float64, case, seeds)


def _eager_in(call: Call, dtype: torch.dtype, case: Case, seeds: list[torch.Tensor]) -> Results:
    """Return what torch computes for f32 inputs in ``dtype``, which the parameters have already."""
    call.given = [t.to(dtype) if t.dtype == torch.float32 else t for t in call.given]
    return _eager(call, seeds if case.training else [])


def _is_seeded(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _FOLLOWED and tensor.requires_grad


def _seeds(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return gradients of the outputs, random but equal on every call, and exact in bf16."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for t in outputs:
        dtype = t.dtype if t.dtype in _FOLLOWED else torch.float32
        seed = torch.randint(-16, 17, tuple(t.shape), generator=generator).to(dtype) / 8
        made.append(seed.requires_grad_(t.requires_grad))
    return made


def _is_random(call: Call) -> bool:
    """Return whether two eager runs with different seeds differ."""
    found = []
    with torch.no_grad():
        for seed in range(12):
            torch.manual_seed(seed)
            made = call(*(t.clone() for t in call.given))
            found.append([t for t in tree_flatten(made)[0] if is_tensor(t)])
    return any(
        a.layout is torch.strided and a.shape == b.shape and not _is_same(a, b)
        for other in found[1:]
        for a, b in zip(found[0], other, strict=True)
    )


def _overwrites(call: Call) -> bool:
    """Return whether the operator writes into its first tensor."""
    given = [t.clone() for t in call.given]
    with torch.no_grad():
        call(*given)
    return bool(given) and given[0]._version > 0


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a.eq(b) | (a.isnan() & b.isnan())).all())


def _judge_random(op: Any, call: Call, run: Callable[[], Results], first: Results, truth: Results) -> Verdict:
    """Judge by mean and deviation over many runs: within six standard errors, of outputs only."""
    if (wrong := compare_forms(first, truth)).state is not State.RIGHT or op.name in UNINITIALISED:
        return wrong
    ours, theirs = [first.outputs], [truth.outputs]
    with torch.no_grad():
        for seed in range(RANDOM_RUNS):
            ours.append(run().outputs)
            torch.manual_seed(1000 + seed)
            made = call(*(t.clone() for t in call.given))
            theirs.append([t for t in tree_flatten(made)[0] if is_tensor(t)])
    for position in range(len(first.outputs)):
        a, b = (torch.stack([t[position].detach().double() for t in runs]) for runs in (ours, theirs))
        if not a.numel():
            continue
        error = ((a.var(0) + b.var(0)) / len(ours)).sqrt() + 1e-6 + 1e-2 * b.abs().mean()
        if bool(((a.mean(0) - b.mean(0)).abs() > 6 * error).any()):
            return Verdict(State.WRONG, text=f"output {position}: its mean over {len(ours)} runs differs from torch's")
        if bool((b.std(0) > 0).any()) and not bool((a.std(0) > 0).any()):
            return Verdict(State.WRONG, text=f"output {position}: equal in every run, torch's is random")
    return Verdict(State.RIGHT)
