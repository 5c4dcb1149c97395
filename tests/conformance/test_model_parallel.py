"""Models over several chips: results of one chip, what each chip holds and moves, leases, counters, refusals."""

import copy
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from rdukit_bench.comparisons.llama_contestants import LlamaProgram
from torch import nn

from rdukit.errors import InvalidArgument
from rdukit.pef import read_pef
from rdukit.pef.chips import chip_shares, projected_run, step_traffic
from rdukit.pef.cli import pef as pef_command
from rdukit.pef.model import Pef, SymbolKind
from rdukit_zoo.language import gpt2, llama
from rdukit_zoo.language.decoder import generate_by_recomputing
from sambaflow import samba
from support import shows
from support.pages import code_blocks, read_page
from support.programs import LogReg, ResFFNLogReg, classifier_inputs, compare_step, compile_model, load_model

pytestmark = shows("model-parallel", "gpt2", "llama", "o0", "o1", "o3")

SIZES: dict[str, Any] = {"layers": 1, "heads": 8, "context_length": 16, "prompt_length": 8}
BUILD = {"gpt2": gpt2.build, "llama": lambda **sizes: llama.build(key_value_heads=8, feed_forward=256, **sizes)}
CONFIG: dict[str, Any] = {"precision": "f32", "arch": "sn10", "kernels": "portable"}


@dataclass(frozen=True, slots=True)
class Step:
    """What a compile and one training step leave."""

    pef: Pef
    losses: list[float]
    gradients: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]


def make_inputs() -> tuple[samba.SambaTensor, samba.SambaTensor]:
    torch.manual_seed(2)
    tokens, labels = torch.randint(512, (4, 16)), torch.randint(512, (4, 16))
    labels[0, :3] = -100
    return samba.from_torch_tensor(tokens, name="tokens"), samba.from_torch_tensor(labels, name="labels")


def train(name: str, folder: Path, **config: Any) -> Step:
    torch.manual_seed(1)
    model, inputs = BUILD[name](**SIZES), make_inputs()
    loaded = load_model(
        model, inputs, folder, lambda p: samba.optim.AdamW(p, lr=0.01, betas=(0.9, 0.99), weight_decay=0.01),
        **{**CONFIG, **config},
    )  # fmt: skip
    losses = [samba.to_torch(loaded.run()[0]).item()]
    gradients = {n: p.sn_grad.clone() for n, p in model.named_parameters()}
    losses += [samba.to_torch(loaded.run()[0]).item() for _ in range(2)]
    samba.session.to_cpu(model)
    weights = {n: samba.to_torch(p).detach().clone() for n, p in model.named_parameters()}
    return Step(read_pef(loaded.pef).pef, losses, gradients, weights)


@pytest.fixture(scope="module")
def on_one_chip(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Step]:
    return {name: train(name, tmp_path_factory.mktemp(name)) for name in BUILD}


CASES = [("gpt2", "weight", 2, "o3"), ("llama", "none", 2, "o1")]
MORE = [
    (name, how, chips, mode)
    for name in BUILD
    for how in ("weight", "batch", "none")
    for chips in (2, 4, 8)
    for mode in ("o1", "o3")
    if (name, how, chips, mode) not in CASES and (how, chips) != ("batch", 8)
]


@pytest.mark.parametrize(
    ("name", "how", "chips", "mode"), [*CASES, *(pytest.param(*case, marks=pytest.mark.long) for case in MORE)]
)
def test_training_over_chips_is_that_on_one(
    name: str, how: str, chips: int, mode: str, on_one_chip: dict[str, Step], tmp_path: Path
) -> None:
    one = on_one_chip[name]
    several = train(name, tmp_path, n_chips=chips, tensor_parallel=how, optim_level=mode)
    # Sums of the chips' parts are rounded in another order.
    torch.testing.assert_close(torch.tensor(several.losses[0]), torch.tensor(one.losses[0]), rtol=1e-5, atol=1e-5)
    for parameter, gradient in one.gradients.items():
        torch.testing.assert_close(several.gradients[parameter], gradient, rtol=1e-5, atol=1e-5)
    # AdamW divides small gradients by their own size: what rounding is there grows.
    torch.testing.assert_close(several.losses, one.losses, rtol=1e-3, atol=1e-3)
    for parameter, weight in one.weights.items():
        torch.testing.assert_close(several.weights[parameter], weight, rtol=0, atol=5e-3)
    plan = several.pef.chips
    assert plan is not None and plan.count == chips and several.pef.num_tiles == 4 * chips
    if how == "weight" and mode == "o3":
        (whole,) = chip_shares(one.pef)
        for share in chip_shares(several.pef):
            assert share.held["parameters"] <= 1.15 / chips * whole.held["parameters"]
            assert share.peak_bytes <= 1.15 / chips * whole.peak_bytes
        assert not plan.replicated


def test_sections_of_different_chips_share_kernels_and_run_at_the_same_time(tmp_path: Path) -> None:
    net, inputs = ResFFNLogReg(), classifier_inputs()
    samba.from_torch_model_(net)
    optimizer = samba.optim.SGD(net.parameters(), lr=0.1)
    options = {**CONFIG, "n_chips": 4, "tensor_parallel": "batch"}
    loaded = read_pef(compile_model(net, inputs, optimizer, tmp_path, **options))
    pef = loaded.pef
    assert pef.chips is not None
    forward = [s for s in pef.sections if s.type == "fwd" and pef.chips.sections[s.id]]
    assert {pef.chips.sections[s.id] for s in forward} == {(0,), (1,), (2,), (3,)}
    assert len({s.kernel for s in forward}) < len(forward)
    assert projected_run(pef, forward) < 0.5 * sum(s.cost.seconds for s in forward)


@pytest.mark.parametrize("how", ["batch", "weight", "none"])
def test_outputs_are_whole_and_their_gradients_are_taken(how: str, tmp_path: Path) -> None:
    net = ResFFNLogReg()
    compare_step(net, classifier_inputs(), tmp_path, n_chips=2, tensor_parallel=how, arch="sn10", kernels="portable")


class Normed(nn.Module):
    """A convolution with batch norm, whose running statistics are updated."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.mark.parametrize("how", ["batch", "none"])
def test_buffers_are_updated_once_and_inputs_get_their_gradient(how: str, tmp_path: Path) -> None:
    x = samba.randn(8, 1, 6, 6, name="x", batch_dim=0).requires_grad_()
    compare_step(
        Normed(), (x,), tmp_path, steps=2, n_chips=2, tensor_parallel=how, arch="sn10", kernels="portable"
    )  # fmt: skip


def test_dropout_draws_what_it_does_on_one_chip(tmp_path: Path) -> None:
    losses = []
    for number, config in enumerate(({}, {"n_chips": 2, "tensor_parallel": "batch"})):
        torch.manual_seed(0)
        net, inputs = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 4)), classifier_inputs()[0]
        made = load_model(
            net, inputs, tmp_path / str(number), lambda p: samba.optim.SGD(p, lr=0.0), **{**CONFIG, **config}
        )
        torch.manual_seed(4)
        losses.append(samba.to_torch(made.run()[0]).clone())
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", ["weight", pytest.param("none", marks=pytest.mark.long)])
def test_texts_are_generated_from_caches_as_on_one_chip(how: str) -> None:
    sizes = llama.LlamaSizes(
        width=64, layers=1, heads=4, key_value_heads=4, feed_forward=96, vocabulary=96, context_length=16,
        prompt_length=5,
    )  # fmt: skip
    torch.manual_seed(3)
    model = llama.Llama(sizes, texts=1).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.2)
    torch.manual_seed(1)
    prompt = torch.randint(sizes.vocabulary, (1, sizes.prompt_length))
    gold = generate_by_recomputing(model, prompt, 6)
    config = {**CONFIG, "log_level": "error", "n_chips": 2, "tensor_parallel": how}
    program = LlamaProgram(copy.deepcopy(model), sizes, config)
    try:
        assert program.generate(prompt, 6) == gold
    finally:
        program.close()


@pytest.mark.parametrize("how", ["batch", "weight"])
def test_in_bf16_losses_fall_as_on_one_chip(how: str, tmp_path: Path) -> None:
    losses = []
    for number, config in enumerate(({}, {"n_chips": 2, "tensor_parallel": how})):
        torch.manual_seed(0)
        options = {**CONFIG, "precision": "bf16", **config}
        made = load_model(
            LogReg(), classifier_inputs(), tmp_path / str(number), lambda p: samba.optim.AdamW(p, lr=0.01), **options
        )
        losses.append([samba.to_torch(made.run()[0]).float().item() for _ in range(4)])
    # Two roundings to 8 bits at another place.
    assert losses[1] == pytest.approx(losses[0], rel=2e-2) and losses[1][3] < losses[1][0]


@pytest.mark.parametrize(
    "options",
    [{"grad_accumulation_steps": 2}, {"data_parallel": True, "world_size": 2}, {"optim_level": "o0"}],
    ids=lambda options: next(iter(options)),
)
def test_other_options_of_a_training_go_along(options: dict[str, Any], tmp_path: Path) -> None:
    net, inputs = LogReg(), classifier_inputs()
    loaded = load_model(
        net, inputs, tmp_path, lambda p: samba.optim.SGD(p, lr=0.1), n_chips=2, tensor_parallel="weight",
        **{**CONFIG, **options},
    )  # fmt: skip
    losses = [samba.to_torch(loaded.run()[0]).item() for _ in range(3)]
    assert losses[2] < losses[0]


def test_clipping_takes_the_norm_over_all_chips(tmp_path: Path) -> None:
    weights = []
    for number, config in enumerate(({}, {"n_chips": 2, "tensor_parallel": "weight"})):
        torch.manual_seed(0)
        net, inputs = LogReg(), classifier_inputs()
        made = load_model(
            net, inputs, tmp_path / str(number), lambda p: samba.optim.AdamW(p, lr=0.1, max_grad_norm=0.01),
            **{**CONFIG, **config},
        )  # fmt: skip
        made.run()
        samba.session.to_cpu(net)
        weights.append([samba.to_torch(p).detach().clone() for p in net.parameters()])
    for one, several in zip(*weights, strict=True):
        torch.testing.assert_close(several, one, rtol=0, atol=1e-4)


def test_a_run_leases_whole_rdus_and_counts_what_crosses_links(tmp_path: Path) -> None:
    loaded = load_model(LogReg(), classifier_inputs(), tmp_path, n_chips=2, tensor_parallel="weight", **CONFIG)
    pef = read_pef(loaded.pef).pef
    application = samba.session.loaded.application
    assert len(application.lease.tiles) == 8
    loaded.run(), loaded.run()
    figures = application.figures()
    moved = step_traffic(pef)
    assert figures["sent"] == [2 * sum(size for (a, _), size in moved.items() if a == chip) for chip in (0, 1)]
    assert figures["link_bytes"] == sum(figures["received"]) == 2 * sum(moved.values()) > 0
    page = application.lease.page.read()
    assert (list(page.link_rx[:2]), list(page.link_tx[:2])) == (figures["received"], figures["sent"])


def test_the_reports_say_what_each_chip_holds_and_what_is_not_divided(tmp_path: Path) -> None:
    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).sort(-1)[0]

    inputs = samba.randn(8, 16, name="x")
    path = compile_model(Sorted(), inputs, None, tmp_path, n_chips=2, tensor_parallel="weight", **CONFIG)
    shown = CliRunner().invoke(pef_command, ["explain", path]).output
    assert "Divided by weight over 2 chips" in shown
    assert "sort of 8x8 has no dimension that 2 chips can divide" in " ".join(shown.split())
    assert "weight, over 2 chips" in CliRunner().invoke(pef_command, ["show", path]).output
    pieces = [s for s in read_pef(path).pef.symbols.values() if s.kind is SymbolKind.PIECE]
    assert [(s.shape, s.region, s.offset) for s in pieces if len(s.shape) == 2] == [
        ((4, 16), "sorted__layer__weight", 0), ((4, 16), "sorted__layer__weight", 256)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_chips": 9}, "--n-chips 9 is not valid; expected 1 to 8"),
        ({"n_chips": "some"}, "--n-chips 'some' is not valid"),
        ({"n_chips": 2, "num_tiles": 2}, "--num-tiles 2 is not valid with --n-chips 2, which uses whole RDUs"),
        ({"n_chips": 2, "tensor_parallel": "rows"}, "--tensor-parallel 'rows' is not valid; expected batch, weight"),
        ({"n_chips": 2, "weight_dtype": "int8", "inference": True}, "--weight-dtype int8 is for one chip"),
        ({"n_chips": 3, "tensor_parallel": "batch"}, "cannot split a batch of 8 over 3 chips"),
        ({"n_chips": 7, "tensor_parallel": "weight"}, "has rows that 7 divides"),
        ({"n_chips": 8}, "too few for a pipeline over 8 chips"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_by_name(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=message.replace("(", r"\(")):
        compile_model(LogReg(), classifier_inputs(), None, tmp_path, **{**CONFIG, **options})
    assert not list(tmp_path.rglob("*.pef"))


def test_one_chip_divides_nothing_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        path = compile_model(LogReg(), classifier_inputs(), None, tmp_path, tensor_parallel="batch", **CONFIG)
    assert read_pef(path).pef.chips is None and "add --n-chips 2 to 8" in caplog.text


def test_the_page_s_example_prints_what_each_chip_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = code_blocks(read_page("model-parallel.md"))
    exec(compile(program, "model-parallel.md", "exec"), {"__name__": "__main__"})
    chips = [line.split() for line in capsys.readouterr().out.splitlines()[-2:]]
    assert [chip for chip, *_ in chips] == ["0", "1"] and all(
        int(figure) > 0 for _, *figures in chips for figure in figures
    )
