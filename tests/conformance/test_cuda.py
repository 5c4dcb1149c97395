"""The same PEF on a CUDA GPU: whole programs there if there is one, and everywhere that its kernels could run there.

Without a GPU, torch's ``meta`` device and torch's own table of operators say whether anything would go astray.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rdukit.errors import InvalidArgument
from rdukit.pef import read_pef
from rdukit_runtime.engine.device_operators import ELSEWHERE
from rdukit_runtime.engine.portable import build_portable
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.graph import FwdGraph
from sambaflow.samba.utils import trace_multigraph
from support import first_short, shows
from support.programs import LogReg, ResFFNLogReg, compile_model, load_model

pytestmark = shows("engine", "node", "settings", "portable")

META = torch.device("meta")
STEPS = 6

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason=f"torch {torch.__version__} sees no CUDA device on this machine"
)


class ConvNet(nn.Module):
    """(x [B, 1, 8, 8], y [B]) → (loss, logits [B, 4])."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.GELU(),
            nn.AvgPool2d(2), nn.Flatten(), nn.Linear(6, 4),
        )  # fmt: skip

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.body(x)
        return F.cross_entropy(logits, y), logits


class Forecaster(nn.Module):
    """(x [B, T, 3], y [B, 1]) → (loss, prediction)."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made, _ = self.lstm(x)
        prediction = self.head(made[:, -1])
        return F.mse_loss(prediction, y), prediction


class Transformer(nn.Module):
    """A block with fused attention between an embedding and its transpose: (ids [B, L], labels [B, L])."""

    def __init__(self, width: int = 16, heads: int = 4, length: int = 8, vocabulary: int = 24) -> None:
        super().__init__()
        self.heads = heads
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        B, L, D = x.shape
        parts = self.qkv(self.norm1(x)).split(D, dim=2)
        q, k, v = (part.view(B, L, self.heads, D // self.heads).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(B, L, D)))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        logits = self.head(x)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


def images(*shape: int) -> Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]:
    return lambda g: (torch.randn(*shape, generator=g), torch.randint(4, shape[:1], generator=g))


def sequences(g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(4, 6, 3, generator=g)
    return x, x.sum((1, 2), keepdim=True)[:, 0] / 4


def tokens(g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(24, (2, 9), generator=g)
    return ids[:, :-1], ids[:, 1:]


@dataclass(frozen=True)
class Case:
    """A model, how to draw a step's inputs, and the optimizer."""

    make: Callable[[], nn.Module]
    draw: Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]
    optimizer: str = "sgd"

    def batches(self, count: int = STEPS) -> list[tuple[Any, ...]]:
        """Named inputs of each step."""
        generator = torch.Generator().manual_seed(3)
        names = ("x", "y") if self.make not in (LogReg, ResFFNLogReg) else ("image", "label")
        drawn = [self.draw(generator) for _ in range(count)]
        return [tuple(samba.from_torch_tensor(t, name=n) for t, n in zip(b, names, strict=True)) for b in drawn]

    def optimize(self, parameters: Any) -> Any:
        if self.optimizer == "sgd":
            return samba.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)
        return samba.optim.AdamW(parameters, lr=3e-3, weight_decay=0.1, max_grad_norm=1.0)


CASES = {
    "logreg": Case(LogReg, images(8, 16)),
    "ffn": Case(ResFFNLogReg, images(8, 16), "adamw"),
    "conv": Case(ConvNet, images(4, 1, 8, 8)),
    "lstm": Case(Forecaster, sequences, "adamw"),
    "transformer": Case(Transformer, tokens, "adamw"),
}


# -- on any machine ----------------------------------------------------------------------------------------------------


class Whereabouts(TorchDispatchMode):
    """Notes operators that made a tensor elsewhere than on the ``meta`` device."""

    def __init__(self) -> None:
        super().__init__()
        self.astray: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, torch.Tensor) and leaf.device != META for leaf in tree_leaves(made)):
            self.astray.add(str(func))
        return made


def operators_without_cuda(names: set[str]) -> set[str]:
    """Of ATen's operators those that torch's own table gives no kernel for CUDA."""
    import torchgen
    import yaml

    table = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    rows = {row["func"].split("(")[0]: row for row in yaml.load(table.read_text(), yaml.CSafeLoader)}
    missing = set()
    for name in names:
        row = rows[name.removeprefix("aten.").removesuffix(".default")]
        keys = " ".join(row.get("dispatch", {"CUDA": ""}))
        if "structured_delegate" not in row and not any(word in keys for word in ("CUDA", "Composite")):
            missing.add(name)
    return missing


@pytest.mark.parametrize("precision", first_short(["f32", "bf16"]))
def test_no_kernel_leaves_the_device_and_all_its_operators_exist_there(precision: str, tmp_path: Path) -> None:
    used: set[str] = set()
    for name, case in CASES.items():
        model = case.make()
        samba.from_torch_model_(model)
        options = {"optim_level": "o3", "precision": precision}
        pef = compile_model(model, case.batches(1)[0], case.optimize(model.parameters()), tmp_path / name, **options)
        samba.session.reset()
        loaded = read_pef(pef)
        rates = dict.fromkeys(loaded.pef.hyperparameters, 0.1)
        for graph in loaded.kernels.values():
            used |= {node.op for node in graph.nodes if node.op.startswith("aten.")}
            inputs = [
                torch.empty_strided(s.shape, s.stride, dtype=getattr(torch, s.dtype), device=META) for s in graph.inputs
            ]
            if any(node.op.startswith("rdukit.") for node in graph.nodes):
                build_portable(graph, META)  # an optimizer looks at values; it makes no tensors of its own
                continue
            with Whereabouts() as found:
                made = build_portable(graph, META)(inputs, rates)
            assert found.astray == set(), name
            assert {tensor.device for tensor in made if tensor is not None} <= {META}
    assert operators_without_cuda(used) == operators_without_cuda(used) & ELSEWHERE.keys()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_setting_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_DEVICE", "cuda")
    case = CASES["logreg"]
    with pytest.raises(InvalidArgument, match=r"device is 'cuda'.*expected cpu"):
        load_model(case.make(), case.batches(1)[0], tmp_path, case.optimize)


# -- with a GPU --------------------------------------------------------------------------------------------------------


def train(case: Case, folder: Path, **config: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of each step, and the parameters and buffers afterwards, on the device that the setting names."""
    utils.set_seed(1)
    batches = case.batches()
    loaded = load_model(case.make(), batches[0], folder, case.optimize, **config)
    losses = [float(samba.to_torch(loaded.run(input_tensors=inputs)[0])) for inputs in batches]
    samba.session.to_cpu(loaded.model)
    state = {name: samba.to_torch(value).detach().clone() for name, value in loaded.model.state_dict().items()}
    return losses, state


@pytest.mark.long
@needs_gpu
@pytest.mark.parametrize("mode", ["o0", "o3"])
@pytest.mark.parametrize("name", CASES)
def test_training_on_a_gpu_equals_training_on_the_host(
    name: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"optim_level": mode, "precision": "f32"}
    gold, gold_state = train(CASES[name], tmp_path / "host", **options)
    samba.session.reset()
    monkeypatch.setenv("RDUKIT_DEVICE", "cuda")
    losses, state = train(CASES[name], tmp_path / "gpu", **options)
    assert samba.session.report()["device"].startswith("cuda:")
    # f32 without TF32: cuBLAS and cuDNN add in another order than the host's libraries, over 6 steps.
    assert losses == pytest.approx(gold, abs=1e-4)
    for parameter, value in gold_state.items():
        torch.testing.assert_close(state[parameter], value, atol=2e-4, rtol=0, msg=parameter)


@pytest.mark.long
@needs_gpu
@pytest.mark.parametrize("name", CASES)
def test_training_on_a_gpu_in_bf16_learns_as_on_the_host(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gold, _ = train(CASES[name], tmp_path / "host", precision="bf16")
    samba.session.reset()
    monkeypatch.setenv("RDUKIT_DEVICE", "cuda")
    losses, _ = train(CASES[name], tmp_path / "gpu", precision="bf16")
    # bf16 has 8 bits of mantissa: losses of about 3 are told apart by 2**-6 a step.
    assert losses == pytest.approx(gold, abs=0.1)


@pytest.mark.long
@needs_gpu
@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "Adagrad", "SGD"])
def test_every_optimizer_updates_on_a_gpu_as_on_the_host(
    optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Chosen(Case):
        def optimize(self, parameters: Any) -> Any:
            return getattr(samba.optim, optimizer)(parameters, lr=0.01)

    case = Chosen(ResFFNLogReg, images(8, 16))
    _, gold = train(case, tmp_path / "host", precision="f32")
    samba.session.reset()
    monkeypatch.setenv("RDUKIT_DEVICE", "cuda")
    _, state = train(case, tmp_path / "gpu", precision="f32")
    for name, value in gold.items():
        # Adam's kind magnifies rounding where gradients are nearly zero, by the learning rate a step at most.
        torch.testing.assert_close(state[name], value, atol=1e-3, rtol=0, msg=name)


@pytest.mark.long
@needs_gpu
def test_everything_that_outlives_a_run_lies_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_DEVICE", "cuda")
    case = CASES["ffn"]
    inputs = case.batches(1)[0]
    loaded = load_model(case.make(), inputs, tmp_path, case.optimize)
    samba.session.start_runtime_profile()
    loaded.run()
    samba.session.end_runtime_profile(tmp_path / "profile.json")
    program = samba.session._loaded().program
    held = [tensor for tensor in (*program._slots, *program._homes.values()) if tensor is not None]
    assert len(held) > 5
    assert all(tensor.is_cuda for tensor in held)
    assert not samba.to_torch(loaded.outputs[0]).is_cuda
    assert not program.gradient("resffnlogreg__gemm1__weight").is_cuda


@pytest.mark.long
@needs_gpu
def test_dropout_on_a_gpu_follows_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_DEVICE", "cuda")

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.drop = nn.Linear(16, 16), nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            made = self.drop(self.lin(x))
            return made.mean(), made

    x = samba.randn(8, 16, name="x")
    loaded = load_model(Dropping(), (x,), tmp_path, lambda p: samba.optim.SGD(p, lr=0.0), precision="f32")

    def drawn(seed: int) -> torch.Tensor:
        utils.set_seed(seed)
        return samba.to_torch(loaded.run(section_types=["fwd"])[1]).clone()

    first, again, other = drawn(5), drawn(5), drawn(6)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert 0.2 < (first == 0).float().mean() < 0.8


@pytest.mark.long
@needs_gpu
def test_multigraph_inference_on_a_gpu_equals_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_DEVICE", "cuda")
    models = [nn.Linear(10, 10), nn.Linear(10, 10)]
    inputs = [samba.randn(4, 10, name=f"ipt{i}") for i in range(2)]
    outputs = []
    for number, (model, x) in enumerate(zip(models, inputs, strict=True)):
        samba.from_torch_model_(model)
        outputs.append(trace_multigraph(model, x))
        samba.session.add_graph(FwdGraph(x, outputs[-1], f"linear{number}"))
    pef = samba.session.compile_multigraph(name="two", config_dict={"precision": "f32", "o1": True})
    samba.session.init_multigraph_runtime(pef)
    for number, (model, x, made) in enumerate(zip(models, inputs, outputs, strict=True)):
        found = samba.session.run(input_tensors=x, output_tensors=made, graph_name=f"linear{number}")[0].data
        gold = F.linear(x.data, samba.to_torch(model.weight), samba.to_torch(model.bias))
        torch.testing.assert_close(found, gold.detach(), atol=1e-5, rtol=0)  # f32, 10 products
