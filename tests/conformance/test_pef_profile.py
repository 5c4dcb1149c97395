"""``rdukit pef profile`` on compiled programs: the figures are right, the files load, bad input is refused."""

import itertools
import json
import sys
import xml.etree.ElementTree as ElementTree
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

from rdukit.collectives.projection import reduce_sections
from rdukit.errors import InvalidArgument, PefNotFound
from rdukit.pef.cli import pef
from rdukit.pef.file import read_pef
from rdukit_runtime.profile.cli import profile
from sambaflow import samba
from sambaflow.samba.graph import FwdGraph
from sambaflow.samba.utils import trace_multigraph
from support import shows
from support.programs import ResFFNLogReg, classifier_inputs, compile_model

pytestmark = shows("pef-profile", "pef")


class Product(nn.Module):
    """One matrix product: [256, 512] → [256, 512]; 134 MFLOP, 2 MB in f32."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(512, 512, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class LookUp(nn.Module):
    """Indices, a truth value for each, and a buffer that must not be negative: [4, 8] → [4, 8, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.norm(self.embedding(ids)).masked_fill(~mask[..., None], 0.0)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(profile, [str(argument) for argument in arguments], catch_exceptions=False)


def document(*arguments: object) -> dict[str, Any]:
    shown = run(*arguments, "--json")
    assert shown.exit_code == 0
    value: dict[str, Any] = json.loads(shown.stdout)
    return value


@pytest.fixture
def training_pef(tmp_path: Path) -> str:
    model = ResFFNLogReg()
    samba.from_torch_model_(model)
    return compile_model(model, classifier_inputs(), samba.optim.SGD(model.parameters(), lr=0.1), tmp_path)


def test_a_product_is_held_against_the_machines_gemm_limit(tmp_path: Path) -> None:
    samba.from_torch_model_(model := Product())
    made = compile_model(model, samba.randn(256, 512, name="x", batch_dim=0), None, tmp_path, precision="f32")
    value = document(made, "--runs", 3, "--measure-limits")
    section = max(value["sections"], key=lambda each: each["projected"]["flops"])
    measured, limit, flops = section["measured"], section["limit"], section["projected"]["flops"]
    assert flops == 2 * 256 * 512 * 512
    assert limit["bound"] == "compute"
    assert limit["gflop_s"] == value["machine"]["gemm_gflop_s"]["f32"]
    assert limit["host_s"] == pytest.approx(flops / limit["gflop_s"] / 1e9)
    assert measured["gflop_s"] == pytest.approx(flops / measured["host_s"] / 1e9)
    assert limit["share"] == pytest.approx(measured["gflop_s"] / limit["gflop_s"])


def test_figures_of_a_training_step_add_up(training_pef: str) -> None:
    value = document(training_pef, "--runs", 3)
    totals, sections = value["totals"], value["sections"]
    assert [section["id"] for section in sections] == list(range(len(sections)))
    assert {section["type"] for section in sections} == {"fwd", "bckwd", "opt"}
    outside_s = totals["measured"]["outside_sections_s"]
    host_s = sum(section["measured"]["host_s"] for section in sections)
    assert host_s + outside_s == pytest.approx(totals["measured"]["host_s"])
    assert sum(s["measured"]["share"] for s in sections) + outside_s / totals["measured"]["host_s"] == pytest.approx(1)
    for figure in ("emulated_s", "flops", "bytes"):
        assert sum(s["projected"][figure] for s in sections) == pytest.approx(totals["projected"][figure])
    assert all(section["form"] == "portable" for section in sections)
    assert value["runs"] == 3


def test_only_the_section_types_asked_for_are_shown_but_what_they_need_runs_too(training_pef: str) -> None:
    assert {s["type"] for s in document(training_pef, "--runs", 2, "--sections", "bckwd")["sections"]} == {"bckwd"}
    assert {s["type"] for s in document(training_pef, "--runs", 2, "--sections", "fwd, opt")["sections"]} == {
        "fwd", "opt"
    }  # fmt: skip


def test_trace_and_picture_are_written_and_load(training_pef: str, tmp_path: Path) -> None:
    trace, picture = tmp_path / "trace.json", tmp_path / "roofline.svg"
    shown = run(training_pef, "--runs", 2, "--trace", trace, "--roofline", picture)
    assert "Sections of" in shown.stdout
    assert "created" not in shown.stdout
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    by_track = {t: [e for e in events if e["tid"] == t] for t in {event["tid"] for event in events}}
    assert len({len(track) for track in by_track.values()}) == 1
    for track in by_track.values():
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in itertools.pairwise(track))
    ElementTree.parse(picture)


def test_operators_inside_the_sections_are_listed(training_pef: str) -> None:
    value = document(training_pef, "--runs", 2, "--operators")
    names = {row["operator"] for row in value["operators"]}
    assert {"native_layer_norm", "rdukit.sgd"} <= names
    assert sum(row["share"] for row in value["operators"]) == pytest.approx(1)
    assert "Operators of one step" in run(training_pef, "--runs", 1, "--operators").stdout


def test_values_are_legal_for_indices_masks_and_variances(tmp_path: Path) -> None:
    inputs = (samba.randint(50, (4, 8), name="ids", batch_dim=0), samba.ones(4, 8, name="mask", dtype=torch.bool))
    samba.from_torch_model_(model := LookUp().eval())
    made = compile_model(model, inputs, None, tmp_path)
    assert document(made, "--runs", 1)["sections"]


def test_all_graphs_of_a_pef_run_in_order_or_one_of_them() -> None:
    for name in ("first", "second"):
        samba.from_torch_model_(model := nn.Linear(10, 10))
        x = samba.randn(4, 10, name=f"{name}_x")
        samba.session.add_graph(FwdGraph(x, trace_multigraph(model, x), name))
    made = samba.session.compile_multigraph(config_dict={"precision": "f32", "o1": True})
    both = document(made, "--runs", 2)
    assert both["graphs"] == ["first", "second"]
    assert {section["graph"] for section in both["sections"]} == {"first", "second"}
    one = document(made, "--runs", 2, "--graph", "second")
    assert {section["graph"] for section in one["sections"]} == {"second"}
    assert one["totals"]["projected"]["flops"] == both["totals"]["projected"]["flops"] / 2


@pytest.mark.long
def test_bad_input_is_refused_with_what_is_legal(training_pef: str, tmp_path: Path) -> None:
    with pytest.raises(PefNotFound):
        run(tmp_path / "none.pef")
    with pytest.raises(InvalidArgument, match="the PEF's graphs are"):
        run(training_pef, "--graph", "none")
    with pytest.raises(InvalidArgument, match="this graph has"):
        run(training_pef, "--sections", "forward")
    with pytest.raises(InvalidArgument, match="fwd,bckwd,opt"):
        run(training_pef, "--sections", ",")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="cannot be written"):
        run(training_pef, "--runs", 1, "--trace", tmp_path / "file" / "trace.json")
    assert run(training_pef, "--runs", "0").exit_code == 2


def test_the_command_joins_rdukit_pef_through_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "part-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: part\nVersion: 0\n")
    (folder / "entry_points.txt").write_text(f"[{pef.extended_by}]\nprofile = rdukit_runtime.profile.cli:profile\n")
    assert PathDistribution(folder).entry_points
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    context = click.Context(pef)
    assert pef.get_command(context, "profile") is profile
    assert {"show", "diff", "explain", "graph", "profile"} <= set(pef.list_commands(context))
    assert pef.get_command(context, "none") is None


def test_the_reduce_is_projected_for_the_world_size_of_the_compile_and_for_any_given_now(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ResFFNLogReg()
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
    made = compile_model(model, classifier_inputs(), optimizer, tmp_path, data_parallel=True, world_size=16)
    section = reduce_sections(read_pef(Path(made)).pef)[0]
    value = document(made, "--runs", "1", "--ranks", "16")["reduce"]
    assert value["algorithm"] in section.why and "among 16 ranks" in section.why
    assert value["projected"]["seconds"] == pytest.approx(section.cost.seconds)
    assert document(made, "--runs", "1", "--ranks", "512")["reduce"]["projected"]["seconds"] > section.cost.seconds
    assert "Reduce among 512 ranks" in run(made, "--runs", "1", "--ranks", "512").stdout
