"""Buffers that get another shape in forward, such as tables that grow with the first long input; added parameters."""

from pathlib import Path

import pytest
import torch
from torch import nn

import sambaflow.samba as samba
from rdukit.errors import CompileError, TraceError
from sambaflow.samba import utils
from sambaflow.samba.graph import FwdGraph
from sambaflow.samba.utils import trace_multigraph
from support import shows

pytestmark = shows("surface", "training-loops-model")

OPTIONS = {"precision": "f32", "pef_name": "t", "log_level": "error"}


class Rotary(nn.Module):
    """A table of angles for 4 places, computed anew for as many as the longest input has."""

    def __init__(self, is_persistent: bool = False) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 6)
        self.is_persistent = is_persistent
        self.register_buffer("frequencies", torch.arange(6.0) / 3)
        self.fill(4)

    def fill(self, length: int) -> None:
        self.length = length
        places = torch.arange(length, dtype=torch.float32)
        table = torch.outer(places, self.frequencies).cos()
        self.register_buffer("table", table, persistent=self.is_persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > self.length:
            self.fill(x.shape[1])
        made: torch.Tensor = self.lin(x) * self.table[: x.shape[1]]
        return made


def run(model: nn.Module, x: torch.Tensor, folder: Path) -> torch.Tensor:
    """Compile in one session, and trace and run in another one, as two processes of a program do."""
    samba.from_torch_model_(model)
    inputs = samba.from_torch_tensor(x, name="x", batch_dim=0)
    options = {**OPTIONS, "output_folder": str(folder)}
    pef = samba.session.compile(model, inputs, config_dict=options)
    samba.session.reset()
    traced = utils.trace_graph(model, inputs, None, pef=pef)
    made: torch.Tensor = samba.to_torch(samba.session.run(inputs, traced)[0])
    samba.session.close()
    return made


@pytest.mark.parametrize("is_persistent", [False, True])
def test_a_table_grows_before_the_trace_as_in_a_first_call(is_persistent: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, plain, x = Rotary(is_persistent), Rotary(is_persistent), torch.randn(2, 9, 6)
    plain.load_state_dict(model.state_dict())
    made, expected = run(model, x, tmp_path), plain(x)
    torch.testing.assert_close(made, expected.detach(), atol=1e-6, rtol=1e-6)  # f32, the same operators
    assert torch.equal(model.table, plain.table) and model.length == 9
    assert model.state_dict().keys() == plain.state_dict().keys()


class Places(nn.Module):
    """Distances of places, written part by part into a new table, and once more after it is assigned."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 3)
        self.register_buffer("step", torch.full((1,), 0.5))
        self.register_buffer("distances", torch.zeros(1, 1, 2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        if self.distances.shape[0] != length:
            table = torch.zeros(length, length, 2)
            far = torch.arange(float(length)).view(1, -1) - torch.arange(float(length)).view(-1, 1)
            table[:, :, 0] = far * self.step
            table.select(2, 1).copy_(far**2)
            self.distances = table.to(x.dtype)
            self.distances[0].mul_(2)
        weights: torch.Tensor = self.lin(self.distances).softmax(1)
        return torch.einsum("abc,nbc->nac", weights, x)


def test_a_grown_table_has_what_was_written_into_it_in_place(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Places(), torch.randn(2, 7, 3)
    plain = Places()
    plain.load_state_dict(model.state_dict())
    expected = plain(x)
    assert torch.allclose(run(model, x, tmp_path), expected, atol=1e-5)
    assert torch.equal(model.distances, plain.distances) and torch.equal(model.step, plain.step)


def test_a_new_process_grows_the_table_again_and_takes_the_pef(tmp_path: Path) -> None:
    x = torch.randn(2, 9, 6)
    inputs, model = samba.from_torch_tensor(x, name="x"), Rotary()
    samba.from_torch_model_(model)
    pef = samba.session.compile(model, inputs, config_dict={**OPTIONS, "output_folder": str(tmp_path)})
    samba.session.reset()
    other = Rotary()
    samba.from_torch_model_(other)
    traced = utils.trace_graph(other, inputs, None, pef=pef)
    made = samba.to_torch(samba.session.run(inputs, traced)[0])
    torch.testing.assert_close(made, other.lin(x).torch().detach() * other.table, atol=1e-6, rtol=1e-6)
    samba.session.close()


@pytest.mark.parametrize("graphs", [1, 2])
def test_a_part_of_a_grown_table_that_the_program_keeps_is_read_in_all_its_graphs(graphs: int, tmp_path: Path) -> None:
    kept: dict[int, torch.Tensor] = {}

    class Keeps(Rotary):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[1] not in kept:
                if x.shape[1] > self.length:
                    self.fill(x.shape[1])
                kept[x.shape[1]] = self.table[: x.shape[1]] * 2.0
            made: torch.Tensor = self.lin(x) * kept[x.shape[1]]
            return made

    torch.manual_seed(0)
    given, weights = [torch.randn(2, 9, 6) for _ in range(graphs)], Rotary().state_dict()
    for pef in ("", str(tmp_path / "t" / "t.pef")):
        samba.session.reset()
        kept.clear()
        model = Keeps()
        model.load_state_dict(weights)
        samba.from_torch_model_(model)
        inputs = [samba.from_torch_tensor(x, name=f"x{number}") for number, x in enumerate(given)]
        outputs = [trace_multigraph(model, x, trace_prefix=x.sn_name) for x in inputs]
        for x, output in zip(inputs, outputs, strict=True):
            samba.session.add_graph(FwdGraph(x, output, x.sn_name))
        if not pef:
            samba.session.compile_multigraph(name="t", config_dict={**OPTIONS, "output_folder": str(tmp_path)})
    samba.session.init_multigraph_runtime(pef)
    for x, output, plain in zip(inputs, outputs, given, strict=True):
        made = samba.to_torch(samba.session.run(x, output, graph_name=x.sn_name)[0])
        expected = nn.functional.linear(plain, weights["lin.weight"], weights["lin.bias"]) * model.table * 2.0
        torch.testing.assert_close(made, expected, atol=1e-6, rtol=1e-6)  # f32, the same operators
    samba.session.close()


def test_a_table_that_depends_on_an_input_is_refused(tmp_path: Path) -> None:
    class Follows(Rotary):
        def fill(self, length: int) -> None:
            super().fill(length)
            if hasattr(self, "seen"):
                self.table = self.table * self.seen

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.__dict__["seen"] = x.mean()
            return super().forward(x)

    with pytest.raises(TraceError, match=r"forward changes buffer 'table' .* unless its value depends on buffers only"):
        run(Follows(), torch.randn(2, 9, 6), tmp_path)


def test_a_buffer_that_grows_with_every_call_is_refused(tmp_path: Path) -> None:
    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen = torch.cat([self.seen, torch.zeros(1)])
            return x + self.seen.sum()

    with pytest.raises(TraceError, match=r"forward changes the shape or dtype of buffer .* at every call"):
        run(Grows(), torch.randn(2, 3), tmp_path)


def test_a_table_that_grows_in_the_dtype_of_the_input_is_read_in_it(tmp_path: Path) -> None:
    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(4.0), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(self.table) < x.shape[1] or self.table.dtype != x.dtype:
                self.register_buffer("table", torch.arange(x.shape[1]).to(x.dtype) / 3, persistent=False)
            return x * self.table

    for x in (torch.randn(2, 4).bfloat16(), torch.randn(2, 6).bfloat16()):
        model = Narrow()
        made = run(model, x, tmp_path)
        assert made.dtype == torch.bfloat16 == model.table.dtype
        assert torch.equal(made, x * (torch.arange(x.shape[1]).bfloat16() / 3))


@pytest.mark.parametrize("how", ["assigned", "in place", "in another dtype"])
def test_a_buffer_that_grows_and_counts_is_refused(how: str, tmp_path: Path) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if how == "in another dtype":
                self.seen = self.seen + 1.0
            elif how == "assigned":
                self.seen = self.seen + torch.ones(3)
            else:
                self.seen = self.seen if self.seen.shape == (3,) else torch.zeros(3)
                self.seen += 1.0
            return x + self.seen.sum()

    with pytest.raises(TraceError, match="'counts__seen' at its first call, and its value at later ones"):
        run(Counts(), torch.randn(2, 3), tmp_path)


def test_a_layer_is_normalized_after_conversion_and_trains(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, plain = nn.Sequential(nn.Linear(8, 3)), nn.Sequential(nn.Linear(8, 3))
    plain.load_state_dict(model.state_dict())
    samba.from_torch_model_(model)
    for net in (model, plain):
        utils.weight_norm_(net[0])
    assert model[0].weight_direction.sn_name == "sequential__0__weight_direction"
    x = samba.from_torch_tensor(torch.randn(4, 8), name="x", batch_dim=0)
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
    pef = samba.session.compile(model, x, optimizer, config_dict={**OPTIONS, "output_folder": str(tmp_path)})
    traced = utils.trace_graph(model, x, optimizer, pef=pef)
    samba.session.run(x, traced)
    plain(x.torch()).sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.sn_grad, theirs.grad)
    samba.session.close()


def test_parameters_that_a_program_adds_after_conversion_are_named(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 6))
    samba.from_torch_model_(model)
    model.append(nn.Linear(6, 2))
    x = torch.randn(3, 6)
    made = run(model, x, tmp_path)
    assert model[1].weight.sn_name == "sequential__1__weight" and made.shape == (3, 2)
    unconverted = nn.Linear(6, 2)
    with pytest.raises(CompileError, match="was not converted"):
        samba.session.compile(unconverted, samba.from_torch_tensor(x, name="x"), config_dict=OPTIONS)
