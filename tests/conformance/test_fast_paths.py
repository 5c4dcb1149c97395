"""O0, O1 and O3, from native libraries and from generated operator code, give torch's numbers.

Modules are small and of odd sizes. Portable kernels of all of them are compared with plain torch; libraries, which
take the C++ compiler seconds, with the portable kernels: those of two modules always, of all with
``RDUKIT_ALL_KERNELS=1``.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rdukit.errors import CompileError
from rdukit.pef.file import read_pef
from rdukit_compiler.backend.native import build_natives
from sambaflow import samba
from support import first_short, shows
from support.native_libraries import chosen_values
from support.programs import load_model

pytestmark = shows("engine", "native", "portable", "o0", "o1", "o3")

STEPS = 3

#: Absolute, in f32: values are of the order of one, and another order of additions changes some ulps a step.
F32_TOLERANCE = 1e-5

#: bf16 rounds by 2^-9 of a value. Losses after three steps and parameters of the order of one: some roundings.
BF16_TOLERANCE = 2**-6

#: The same bf16 arithmetic in libraries and in generated code: a GEMM that adds in another order flips a last bit.
BF16_SAME = 2**-7

Batch = tuple[torch.Tensor, ...]


class OddMlp(nn.Module):
    """Few rows against weights that are worth a kernel: (x [3, 67], labels [3] int64) → (loss [], logits [3, 5])."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(67, 65), nn.LayerNorm(65), nn.Linear(65, 5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.second(F.gelu(self.norm(self.first(x))))
        return F.cross_entropy(logits, labels), logits


class TiedWords(nn.Module):
    """Embedding and head are one parameter; ids [3, 5] int64 → (loss [], logits [3, 5, 71])."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mixed = nn.Embedding(71, 67), nn.Linear(67, 67, bias=False)
        self.head = nn.Linear(67, 71, bias=False)
        nn.init.normal_(self.words.weight, std=67**-0.5)  # logits of the order of one, which tolerances are for
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(self.mixed(self.words(ids)).tanh())
        return F.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten()), logits


class Aliased(nn.Module):
    """Returns a view of its input, and one of a value changed in part: x [5, 3] → (loss [], [3, 5], [3, 5])."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        turned = x.t()
        made = self.lin(x)
        made[1:3].mul_(0.5)
        view = made.t()
        self.seen.add_(x.mean(0))
        return (view * turned).square().mean() + self.seen.detach().sum() * 0, turned, view


class Windows(nn.Module):
    """Convolution, pooling and batch norm: x [3, 2, 13] → (loss [], [3, 5])."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv1d(2, 3, 5, stride=2), nn.BatchNorm1d(3), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.head(F.max_pool1d(self.norm(self.conv(x)).relu(), 2).flatten(1))
        return made.square().mean(), made


class Attention(nn.Module):
    """Causal, 3 heads of 3: x [2, 5, 9] → (loss [], [2, 5, 9])."""

    def __init__(self) -> None:
        super().__init__()
        self.projected, self.out = nn.Linear(9, 27), nn.Linear(9, 9)
        self.register_buffer("mask", torch.ones(5, 5).tril().bool())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = self.projected(x).view(2, 5, 3, 3, 3).permute(2, 0, 3, 1, 4)
        scores = (parts[0] @ parts[1].transpose(-1, -2) / 3**0.5).masked_fill(~self.mask, float("-inf"))
        made = self.out((scores.softmax(-1) @ parts[2]).transpose(1, 2).reshape(2, 5, 9))
        return (made - x).square().mean(), made


class Whole(nn.Module):
    """Whole numbers all the way, for inference: ids [5, 3] int64, table [7] int32 → int64, int32, bool."""

    def forward(self, ids: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mixed = (ids * 3 + ids.flip(0)) % 7
        return mixed, table[mixed] - 2**30, mixed.cumsum(1) > ids


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    draw: Callable[[torch.Generator], Batch]
    is_trained: bool = True


def floats(*shape: int) -> Callable[[torch.Generator], Batch]:
    return lambda generator: (torch.randn(*shape, generator=generator),)


def labelled(generator: torch.Generator) -> Batch:
    return torch.randn(3, 67, generator=generator), torch.randint(5, (3,), generator=generator)


def words(generator: torch.Generator) -> Batch:
    return (torch.randint(71, (3, 5), generator=generator),)


def whole(generator: torch.Generator) -> Batch:
    return torch.randint(9, (5, 3), generator=generator), torch.randint(2**30, (7,), generator=generator).int()


CASES = {
    "odd-mlp": Case(OddMlp, labelled),
    "tied-words": Case(TiedWords, words),
    "aliased": Case(Aliased, floats(5, 3)),
    "windows": Case(Windows, floats(3, 2, 13)),
    "attention": Case(Attention, floats(2, 5, 9)),
    "whole": Case(Whole, whole, is_trained=False),
}

#: The ways of products that differ most from what generated code calls; the machine's own may be others.
ROUTES = "bf16=f32,f32=onednn"

#: Modules whose libraries are built: (module, mode, precision). RDUKIT_ALL_KERNELS=1 builds those of all.
LIBRARIES = (
    [(name, mode, precision) for name in CASES for mode in ("o1", "o3") for precision in ("f32", "bf16")]
    if os.environ.get("RDUKIT_ALL_KERNELS") == "1"
    else [("odd-mlp", "o3", "f32"), ("tied-words", "o3", "bf16")]
)

has_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX") or "g++") is None, reason="libraries need a C++ compiler"
)


@dataclass(frozen=True)
class Numbers:
    """What came out of ``STEPS`` steps: outputs of each, the first step's gradients, the state at the end."""

    outputs: list[list[torch.Tensor]]
    gradients: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor]


def on_torch(case: Case) -> Numbers:
    torch.manual_seed(11)
    net, batches = case.make(), batches_of(case)
    if not case.is_trained:
        return Numbers([list(net(*batch)) for batch in batches], {}, {})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    outputs, gradients = [], {}
    for batch in batches:
        optimizer.zero_grad()
        made = net(*batch)
        made[0].backward()
        gradients = gradients or {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
        outputs.append([tensor.detach().clone() for tensor in made])
        optimizer.step()
    return Numbers(outputs, gradients, {name: value.clone() for name, value in net.state_dict().items()})


def on_device(case: Case, folder: Path, mode: str, precision: str) -> tuple[Numbers, int, str]:
    """The numbers, how many kernels were native, and the PEF."""
    samba.session.reset()
    torch.manual_seed(11)
    net, batches = case.make(), batches_of(case)
    named = [tuple(samba.from_torch_tensor(t, name=f"in{i}") for i, t in enumerate(batch)) for batch in batches]
    loaded = load_model(
        net, named[0], folder, (lambda p: samba.optim.SGD(p, lr=0.1)) if case.is_trained else None,
        optim_level=mode, precision=precision, inference=not case.is_trained,
    )  # fmt: skip
    outputs, gradients = [], {}
    for inputs in named:
        made = loaded.run(input_tensors=inputs)
        outputs.append([samba.to_torch(tensor).clone() for tensor in made])
        if case.is_trained and not gradients:
            gradients = {name: p.sn_grad.float().clone() for name, p in net.named_parameters()}
    native = samba.session.report()["native_kernels"]
    samba.session.to_cpu(net)
    state = {name: samba.to_torch(value).clone() for name, value in net.state_dict().items()}
    return Numbers(outputs, gradients, state if case.is_trained else {}), native, loaded.pef


def batches_of(case: Case) -> list[Batch]:
    generator = torch.Generator().manual_seed(3)
    return [case.draw(generator) for _ in range(STEPS)]


def assert_near(ours: Numbers, theirs: Numbers, tolerance: float) -> None:
    """``tolerance`` is absolute and, for values above one, relative. Whole numbers are equal."""
    for step, (made, gold) in enumerate(zip(ours.outputs, theirs.outputs, strict=True)):
        for number, (one, other) in enumerate(zip(made, gold, strict=True)):
            assert one.shape == other.shape
            assert_tensor_near(one, other, tolerance, f"output {number} of step {step}")
    assert ours.gradients.keys() == theirs.gradients.keys()
    for name, gradient in theirs.gradients.items():
        assert_tensor_near(ours.gradients[name], gradient, tolerance, f"gradient of {name}")
    assert ours.state.keys() == theirs.state.keys()
    for name, value in theirs.state.items():
        assert_tensor_near(ours.state[name], value, tolerance, f"{name} after {STEPS} steps")


def assert_tensor_near(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float, what: str) -> None:
    if not theirs.is_floating_point():
        assert torch.equal(ours, theirs), what
    else:
        excess = (ours.double() - theirs.double()).abs() - tolerance * theirs.double().abs().clamp(min=1.0)
        assert excess.max().item() <= 0.0, what


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
@pytest.mark.parametrize("name", CASES)
def test_generated_code_trains_as_torch_does(name: str, mode: str, precision: str, tmp_path: Path) -> None:
    made, native, _ = on_device(CASES[name], tmp_path, mode, precision)
    assert native == 0
    assert_near(made, on_torch(CASES[name]), F32_TOLERANCE if precision == "f32" else BF16_TOLERANCE)


@pytest.fixture(scope="module")
def portable_numbers(
    rdukit_home: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[tuple[str, str, str], Numbers]:
    """What generated code gives. The libraries of all that run are built at once: that reads torch's headers once."""
    wanted = [row for row in LIBRARIES if row in chosen_values(request, "name", "mode", "precision")]
    numbers, kernels = {}, {}
    settings = {
        "HOME": str(rdukit_home), "KERNELS": "portable", "NODE": "private", "COMPILE_WORKERS": "1",
        "COMPILE_ROUTES": ROUTES,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(f"RDUKIT_{name}", value)
        for row in wanted:
            name, mode, precision = row
            numbers[row], _, pef = on_device(CASES[name], tmp_path_factory.mktemp("portable"), mode, precision)
            kernels |= read_pef(pef).kernels
        samba.session.reset()
        failed: list[str] = []
        build_natives(kernels, lambda digest, error: failed.append(error) if error else None)
    assert failed == []
    return numbers


@has_compiler
@pytest.mark.timeout(1800)  # the first builds the libraries of all
@pytest.mark.parametrize(("name", "mode", "precision"), first_short(LIBRARIES))
def test_libraries_give_what_generated_code_gives(
    name: str, mode: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    portable_numbers: dict[tuple[str, str, str], Numbers],
) -> None:  # fmt: skip
    """The libraries are kept, so the compile takes them without a compiler."""
    monkeypatch.setenv("RDUKIT_KERNELS", "native")
    monkeypatch.setenv("RDUKIT_COMPILE_ROUTES", ROUTES)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    made, count, _ = on_device(CASES[name], tmp_path, mode, precision)
    assert count > 0
    expected = portable_numbers[name, mode, precision]
    assert_near(made, expected, F32_TOLERANCE if precision == "f32" else BF16_SAME)


def test_without_a_compiler_a_program_is_compiled_and_runs_from_generated_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))  # nothing is kept there
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("RDUKIT_KERNELS", "auto")
    made, native, _ = on_device(CASES["odd-mlp"], tmp_path, "o1", "f32")
    assert native == 0
    assert_near(made, on_torch(CASES["odd-mlp"]), F32_TOLERANCE)


def test_asking_for_libraries_without_a_compiler_is_refused_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("RDUKIT_KERNELS", "native")
    with pytest.raises(CompileError, match=r"no C\+\+ compiler was found.*RDUKIT_KERNELS=portable"):
        on_device(CASES["odd-mlp"], tmp_path, "o1", "f32")
    assert not list(tmp_path.rglob("*.pef"))
