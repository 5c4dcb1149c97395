"""Multigraph inference: several graphs in one PEF, tied weights, shared regions (SDK reference 12, seed text 000)."""

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import nn

from rdukit.errors import CompileError, InvalidArgument, PefMismatch, RuntimeFault, TraceError
from rdukit.pef import read_pef
from rdukit.pef.model import CONSTANTS
from sambaflow import samba
from sambaflow.samba.graph import FwdGraph, SambaGraph
from sambaflow.samba.sambatensor import SambaTensor
from sambaflow.samba.utils import trace_multigraph
from support import shows

pytestmark = shows("surface", "o0", "o1", "o3")

F32 = {"precision": "f32", "o1": True}

O0 = {"precision": "f32", "o0": True}

SEED_PROGRAM = """
import sys
import torch
import torch.nn as nn
import sambaflow.samba as samba
from sambaflow.samba.utils import set_seed, trace_multigraph
from sambaflow.samba.utils.argparser import parse_app_args
from sambaflow.samba.graph import FwdGraph

def add_args(parser):
    parser.add_argument("--seed-of-weights", type=int, default=3)

args = parse_app_args(argv=sys.argv[1:], common_parser_fn=add_args)
set_seed(args.seed_of_weights)
model0 = nn.Linear(10, 10)
model1 = nn.Linear(10, 10)
samba.from_torch_model_(model0)
samba.from_torch_model_(model1)
inputs0 = samba.randn(args.batch_size, 10, name="ipt0")
inputs1 = samba.randn(args.batch_size, 10, name="ipt1")
outputs0 = trace_multigraph(model0, inputs0)
outputs1 = trace_multigraph(model1, inputs1)
graph0 = FwdGraph(inputs0, outputs0, name="linear0")
graph1 = FwdGraph(inputs1, outputs1, name="linear1")
samba.session.add_graph(graph0)
samba.session.add_graph(graph1)
if args.command == "compile":
    print(samba.session.compile_multigraph(name="two", config_dict=vars(args)))
elif args.command == "test":
    samba.session.init_multigraph_runtime(args.pef)
    for model, inputs, name in ((model0, inputs0, "linear0"), (model1, inputs1, "linear1")):
        out = samba.session.run(input_tensors=[inputs], output_tensors=model.output_tensors, graph_name=name)[0]
        gold = model(inputs)
        samba.utils.assert_close(out, gold, name, threshold=3e-2)
"""


def add(*graphs: FwdGraph) -> None:
    for graph in graphs:
        samba.session.add_graph(graph)


def linears(tied: bool = False, seed: int = 1) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(seed)
    first, second = nn.Linear(10, 10), nn.Linear(10, 10)
    samba.from_torch_model_(first)
    samba.from_torch_model_(second)
    if tied:
        second.weight = first.weight
    return first, second


def two_graphs(first: nn.Linear, second: nn.Linear) -> tuple[SambaTensor, SambaTensor]:
    x0, x1 = samba.randn(4, 10, name="ipt0"), samba.randn(4, 10, name="ipt1")
    add(FwdGraph(x0, trace_multigraph(first, x0), "linear0"), FwdGraph(x1, trace_multigraph(second, x1), "linear1"))
    return x0, x1


def restart() -> None:
    samba.session.reset()


def run(name: str, inputs: Any, outputs: Any) -> torch.Tensor:
    found: torch.Tensor = samba.session.run(input_tensors=inputs, output_tensors=outputs, graph_name=name)[0].data
    return found


# -- the seed example --------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_seed_example_compiles_and_runs_in_fresh_processes(tmp_path: Path) -> None:
    program = tmp_path / "two_linears.py"
    program.write_text(SEED_PROGRAM)
    command = [sys.executable, str(program)]
    folder = ["--output-folder", str(tmp_path / "out"), "--pef-name", "two"]
    made = subprocess.run(
        [*command, "compile", "-b", "4", *folder], capture_output=True, text=True, timeout=120, check=False
    )
    assert made.returncode == 0, made.stderr
    pef = tmp_path / "out" / "two" / "two.pef"
    ran = subprocess.run(
        [*command, "test", "-b", "4", "-p", str(pef)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "linear0: absolute error" in ran.stdout and "linear1: absolute error" in ran.stdout


def test_two_models_of_one_class_run_in_one_process_after_reset() -> None:
    first, second = linears()
    two_graphs(first, second)
    pef = samba.session.compile_multigraph(name="two", config_dict=F32)
    restart()
    first, second = linears()
    x0, x1 = two_graphs(first, second)
    assert second.name == "linear_1" and second.bias.sn_name == "linear_1__bias"
    samba.session.init_multigraph_runtime(pef)
    for model, x, name in ((first, x0, "linear0"), (second, x1, "linear1")):
        gold = nn.functional.linear(x.data, model.weight.data, model.bias.data)
        torch.testing.assert_close(run(name, [x], model.output_tensors), gold)
    assert samba.session.report()["sections"] == 2


def test_trace_multigraph_is_reachable_from_samba_too() -> None:
    assert samba.trace_multigraph is trace_multigraph and issubclass(FwdGraph, SambaGraph)


def test_run_needs_a_graph_name_when_there_are_several() -> None:
    x0, _ = two_graphs(*linears())
    samba.session.init_multigraph_runtime(samba.session.compile_multigraph(config_dict=F32))
    with pytest.raises(InvalidArgument, match="linear0, linear1"):
        samba.session.run([x0], None)
    with pytest.raises(InvalidArgument, match="no graph 'linear2'"):
        samba.session.run([x0], None, graph_name="linear2")


# -- weight tying ------------------------------------------------------------------------------------------------------


def test_an_update_of_a_tied_weight_is_seen_in_both_graphs() -> None:
    first, second = linears(tied=True)
    x0, x1 = two_graphs(first, second)
    samba.session.init_multigraph_runtime(samba.session.compile_multigraph(config_dict=F32))
    for owner in (first, second):
        with torch.no_grad():
            owner.weight.data.mul_(2)
        owner.weight.rdu()
        for model, x, name in ((first, x0, "linear0"), (second, x1, "linear1")):
            gold = nn.functional.linear(x.data, first.weight.data, model.bias.data)
            torch.testing.assert_close(run(name, [x], model.output_tensors), gold)


def test_one_module_traced_twice_shares_its_parameters() -> None:
    model = samba.from_torch_model_(nn.Linear(10, 10))
    short, long = samba.randn(2, 10, name="short"), samba.randn(8, 10, name="long")
    made = [trace_multigraph(model, x, trace_prefix=x.sn_name)[0] for x in (short, long)]
    assert made[0].sn_name != made[1].sn_name
    add(FwdGraph(short, made[0], "short"), FwdGraph(long, made[1], "long"))
    samba.session.init_multigraph_runtime(samba.session.compile_multigraph(config_dict=F32))
    for x, out, name in zip((short, long), made, ("short", "long"), strict=True):
        gold = nn.functional.linear(x.data, model.weight.data, model.bias.data)
        torch.testing.assert_close(run(name, [x], [out]), gold)


# -- sub-graphs --------------------------------------------------------------------------------------------------------


class BodyAndHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        hidden = self.body(x).tanh()
        return {"logits": self.head(hidden), "hidden": ((hidden,),)}


def test_a_graph_may_start_at_an_intermediate_value_that_another_graph_makes() -> None:
    model = samba.from_torch_model_(BodyAndHead())
    x = samba.randn(3, 6, name="x")
    logits, hidden = trace_multigraph(model, {"x": x})
    # The nesting and the trailing comma are what programs really pass.
    add(FwdGraph(({"h": hidden},), (logits,), "head"), FwdGraph({"x": (x,)}, ((hidden,),), "body"))
    samba.session.init_multigraph_runtime(samba.session.compile_multigraph(config_dict=O0))
    gold = (x.data @ model.body.weight.data.T + model.body.bias.data).tanh()
    first = samba.session.run([x], [hidden], graph_name="body")[0]
    samba.session.run(None, None, graph_name="head")
    found = samba.session.get_tensors_by_name([logits.sn_name])[0].data
    torch.testing.assert_close(found, gold @ model.head.weight.data.T + model.head.bias.data)
    samba.session.run([samba.zeros(3, 6, name="x")], None, graph_name="body")
    torch.testing.assert_close(first.data, gold)  # a handle keeps the value of its own run
    programs = {s.graph: s.operators for s in samba.session._loaded().pef.sections if "head" in s.graph}
    assert len(programs) == 1 and "tanh" not in str(programs)


# -- cached decoding ---------------------------------------------------------------------------------------------------

LENGTH, WIDTH, VOCAB = 8, 16, 11


class TinyDecoder(nn.Module):
    """One attention layer with a static cache [1, LENGTH, WIDTH]; the position of the last token is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, input_ids: Any, last: Any, past: Any = None, use_cache: bool = True) -> dict[str, Any]:
        x = self.embed(input_ids)
        k, v = self.k(x), self.v(x)
        if past is None:
            x = x.gather(1, last.reshape(1, 1, 1).expand(1, 1, WIDTH))
        else:
            at = last.reshape(1, 1, 1).expand(1, 1, WIDTH)
            k, v = past[0][0].scatter(1, at, k), past[0][1].scatter(1, at, v)
        scores = self.q(x) @ k.transpose(1, 2) / WIDTH**0.5
        hidden = torch.arange(LENGTH).reshape(1, 1, LENGTH) > last.reshape(1, 1, 1)
        attended = scores.masked_fill(hidden, -1e9).softmax(-1) @ v
        return {"logits": self.head(attended + x), "past": ((k, v),)}


def trace_decoder() -> TinyDecoder:
    """The steps of SDK reference 12.2: empty cache inputs, then regions are stitched."""
    torch.manual_seed(5)
    model = TinyDecoder()
    samba.from_torch_model_(model)
    prompt = samba.zeros(1, LENGTH, dtype=torch.int64, name="prompt")
    last = samba.zeros(1, dtype=torch.int64, name="last")
    logits, k, v = trace_multigraph(model, {"input_ids": prompt, "last": last, "use_cache": True}, "nocache")
    token = samba.zeros(1, 1, dtype=torch.int64, name="token")
    past = tuple(
        SambaTensor(shape=t.shape, dtype=t.dtype, name=f"{t.sn_name}_copy", region_name=t.sn_region_name)
        for t in (k, v)
    )
    cached = {"input_ids": token, "last": last, "past": (past,)}
    logits_cached, *new = trace_multigraph(model, cached, "cache")
    for output, home in zip(new, past, strict=True):
        output.sn_region_name = home.sn_region_name
    logits.sn_region_name = logits_cached.sn_region_name = "logits"
    add(
        FwdGraph({"input_ids": prompt, "last": last}, (logits, (k, v)), "nocache_fwd"),
        FwdGraph(cached, (logits_cached, tuple(new)), "cache_fwd"),
    )
    return model


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
def test_cached_decoding_over_shared_regions_equals_full_recomputation(mode: str) -> None:
    trace_decoder()
    pef = samba.session.compile_multigraph(name="decode", config_dict={"precision": "f32", mode: True})
    restart()
    model = trace_decoder()
    samba.session.init_multigraph_runtime(pef)
    gold_model = TinyDecoder()
    gold_model.load_state_dict({name: p.data.clone() for name, p in model.named_parameters()})
    tokens = [3, 1, 4]
    for step in range(4):
        padded = torch.tensor([tokens + [0] * (LENGTH - len(tokens))])
        last = torch.tensor([len(tokens) - 1])
        given = {"last": last, "prompt": padded} if step == 0 else {"last": last, "token": torch.tensor([tokens[-1:]])}
        name = "nocache_fwd" if step == 0 else "cache_fwd"
        samba.session.run(input_tensors=samba.from_named_dict(given), graph_name=name)
        ours = samba.session.get_tensors_by_name(["logits"])[0].data
        with torch.no_grad():
            gold = gold_model(padded, last)["logits"]
        torch.testing.assert_close(ours, gold, rtol=1e-5, atol=1e-5)
        tokens.append(int(gold.argmax()))


class Swap(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        return b.view(2, 3), (a + b).tanh() - b


def test_outputs_that_share_regions_with_inputs_are_written_after_all_reads() -> None:
    model = samba.from_torch_model_(Swap())
    a, b = samba.randn(2, 3, name="a"), samba.randn(2, 3, name="b")
    first, second = trace_multigraph(model, (a, b))
    first.sn_region_name, second.sn_region_name = "a", "b"
    add(FwdGraph((a, b), (first, second), "step"))
    samba.session.init_multigraph_runtime(samba.session.compile_multigraph(config_dict=O0))
    x, y = a.data.clone(), b.data.clone()
    for _ in range(3):  # the inputs with values were uploaded at init; nothing is passed
        samba.session.run(graph_name="step")
        x, y = y, (x + y).tanh() - y
    found = [t.data for t in samba.session.get_tensors_by_name(["a", "b"])]
    torch.testing.assert_close(found, [x, y])


def test_weights_without_data_compile_and_the_chip_may_be_named() -> None:
    with torch.device("meta"):
        model = samba.from_torch_model_(nn.Linear(10, 10))
    x = samba.randn(2, 10, name="x")
    add(FwdGraph(x, trace_multigraph(model, x), "g"))
    assert samba.session.compile_multigraph(samba_only=True) == ""
    pef = samba.session.compile_multigraph(config_dict=F32, arch="sn40", enable_hypersection=True)
    restart()
    loaded = samba.from_torch_model_(nn.Linear(10, 10))
    add(FwdGraph(x, trace_multigraph(loaded, x), "g"))
    samba.session.init_multigraph_runtime(pef)
    gold = nn.functional.linear(x.data, loaded.weight.data, loaded.bias.data)
    torch.testing.assert_close(run("g", [x], loaded.output_tensors), gold)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.total: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        self.total.add_(y)
        return y.tanh()


def test_a_buffer_that_forward_changes_is_changed_by_its_graph() -> None:
    model, x = samba.from_torch_model_(Counter()), samba.ones(3, name="x")
    add(FwdGraph(x, trace_multigraph(model, x), "count"))
    samba.session.init_multigraph_runtime(samba.session.compile_multigraph(config_dict=F32))
    for _ in range(3):
        samba.session.run([x], None, graph_name="count")
    samba.session.to_cpu(model)
    assert model.total.tolist() == [6.0, 6.0, 6.0]


# -- errors ------------------------------------------------------------------------------------------------------------


def test_a_graph_name_may_be_used_once() -> None:
    x0, _ = two_graphs(*linears())
    with pytest.raises(InvalidArgument, match="'linear0' was already added"):
        add(FwdGraph(x0, samba.session.output_dict["linear__linear__outputs__0"], "linear0"))


def test_a_missing_start_is_named() -> None:
    model = samba.from_torch_model_(Swap())
    a, b = samba.randn(2, 3, name="a"), samba.randn(2, 3, name="b")
    add(FwdGraph(a, trace_multigraph(model, (a, b)), "half"))
    with pytest.raises(CompileError, match="depends on input 'b', which is not among start"):
        samba.session.compile_multigraph(config_dict=F32)


def test_two_inputs_of_a_graph_cannot_share_a_region() -> None:
    model = samba.from_torch_model_(Swap())
    a, b = samba.randn(2, 3, name="a"), samba.randn(2, 3, name="b")
    add(FwdGraph((a, b), trace_multigraph(model, (a, b)), "both"))
    b.sn_region_name = "a"
    with pytest.raises(CompileError, match="inputs 'a' and 'b' share region 'a'"):
        samba.session.compile_multigraph(samba_only=True)


def test_a_tensor_that_was_not_traced_is_refused() -> None:
    model, x = samba.from_torch_model_(nn.Linear(10, 10)), samba.randn(2, 10, name="x")
    trace_multigraph(model, x)
    add(FwdGraph(x, samba.randn(2, 10, name="stranger"), "g"))
    with pytest.raises(CompileError, match="'stranger' was not traced"):
        samba.session.compile_multigraph(config_dict=F32)


def test_one_name_for_inputs_of_two_shapes_is_refused() -> None:
    first, second = linears()
    trace_multigraph(first, samba.randn(2, 10, name="x"))
    with pytest.raises(TraceError, match="'x' is"):
        trace_multigraph(second, samba.randn(3, 10, name="x"))


def test_a_run_that_differs_from_the_compile_is_refused() -> None:
    first, second = linears()
    two_graphs(first, second)
    pef = samba.session.compile_multigraph(config_dict=F32)
    restart()
    two_graphs(*linears())
    samba.session.output_dict[first.output_tensors[0].sn_name].sn_region_name = "elsewhere"
    with pytest.raises(PefMismatch, match="region 'elsewhere'"):
        samba.session.init_multigraph_runtime(pef)
    restart()
    x = samba.randn(4, 10, name="ipt0")
    add(FwdGraph(x, trace_multigraph(linears()[0], x), "linear0"))
    with pytest.raises(PefMismatch, match="compiled from graphs linear0, linear1"):
        samba.session.init_multigraph_runtime(pef)


def test_training_and_empty_sessions_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="no graph was added"):
        samba.session.compile_multigraph()
    two_graphs(*linears())
    with pytest.raises(InvalidArgument, match="inference only"):
        samba.session.compile_multigraph(inference=False)
    with pytest.raises(RuntimeFault, match="init_multigraph_runtime"):
        samba.session.run(graph_name="linear0")


def test_a_graph_of_no_tensors_is_added_and_computes_nothing() -> None:
    models = linears()
    two_graphs(*models)
    samba.session.add_graph(FwdGraph({}, None, "unused"))
    pef = samba.session.compile_multigraph(name="multi", config_dict=F32)
    assert "unused" not in read_pef(pef).pef.graphs
    samba.session.init_multigraph_runtime(pef)
    with pytest.raises(InvalidArgument, match="unused"):
        samba.session.run(graph_name="unused")
    with pytest.raises(InvalidArgument, match="stop of graph 'open' holds no SambaTensor"):
        FwdGraph(samba.randn(1, name="start"), None, "open")


class Tables(nn.Module):
    """Two tables of no checkpoint, of which forward reads one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("read", torch.ones(4), persistent=False)
        self.register_buffer("unread", torch.ones(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.read


@pytest.mark.parametrize("several", [False, True], ids=["graph", "multigraph"])
def test_a_pef_takes_along_only_the_tables_that_it_reads(several: bool) -> None:
    model, x = Tables(), samba.randn(2, 4, name="x")
    samba.from_torch_model_(model)
    if several:
        samba.session.add_graph(FwdGraph(x, trace_multigraph(model, x), "tables"))
        pef = samba.session.compile_multigraph(name="tables", config_dict=F32)
    else:
        pef = samba.session.compile(model, x, config_dict=F32, name="tables")
    assert list(load(base64.b64decode(read_pef(pef).pef.metadata[CONSTANTS]))) == ["tables__read"]
