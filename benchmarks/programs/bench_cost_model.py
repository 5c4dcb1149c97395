"""What the cost model makes of every published figure, beside that figure.

Each workload is traced, cut into sections and projected by the compiler itself; nothing here knows how long anything
takes. Models deeper than 12 layers are extrapolated from 8 and 12 layers unless ``--full`` is given; all quantities
are sums over sections, and layers are equal. A ratio is the larger of ours and theirs over the smaller.

Run: python benchmarks/programs/bench_cost_model.py [--json FILE] [--only WORD] [--full]
"""

import argparse
import logging
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import published_models as models
import torch
import yaml
from rdukit_bench.comparisons.machine import write_json
from rich.console import Console
from rich.table import Table

from rdukit.collectives.topology import load_defaults
from rdukit.hardware import find_chip
from rdukit_compiler.cost.model import load_constants
from rdukit_compiler.ir import ModelGraph, ValueKind
from rdukit_compiler.optimizer import OptimizerGroup
from rdukit_compiler.options import CompileOptions
from rdukit_compiler.pipeline import TracedGraph, estimate_sections
from sambaflow import samba
from sambaflow.tracing.tracer import trace_model

POINTS: Final = Path(__file__).with_name("published_points.yaml")
#: Depths that deeper models are extrapolated from.
SHALLOW: Final = (8, 12)
ADAMW: Final = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}


@dataclass(frozen=True, slots=True)
class Point:
    """A published figure, or a range from ``published`` to ``up_to``, and ours."""

    what: str
    published: float
    up_to: float
    ours: float
    unit: str
    use: str
    note: str

    @property
    def is_range(self) -> bool:
        return self.up_to != self.published

    @property
    def ratio(self) -> float:
        """The larger over the smaller; of a range its nearer end, and 1 inside."""
        nearest = min(max(self.ours, self.published), self.up_to)
        return max(self.ours / nearest, nearest / self.ours)


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over the sections of one step: seconds, flop, bytes moved, units times seconds, sections."""

    seconds: float
    flops: float
    bytes: float
    pcu_seconds: float
    pmu_seconds: float
    sections: float

    def beyond(self, shallower: "Sums", layers: float) -> "Sums":
        """With more layers, each worth ``1 / layers`` of what this has more than ``shallower``."""
        pairs = zip(_fields(self), _fields(shallower), strict=True)
        return Sums(*(here + (here - there) * layers for here, there in pairs))


def _fields(sums: Sums) -> tuple[float, ...]:
    return (sums.seconds, sums.flops, sums.bytes, sums.pcu_seconds, sums.pmu_seconds, sums.sections)


# -- workloads ---------------------------------------------------------------------------------------------------------

FULL = False


def training(name: str, mode: str, layers: int, tiles: int = 4, batch: int = 0, length: int = 0) -> Sums:
    """Return a training step with AdamW on SN30."""
    size = _sizes(name, batch, length)
    return _deep(layers, lambda depth: _project(_training_graph(name, depth, *size), mode, "sn30", tiles, False))


def decoding(name: str, mode: str, arch: str, sockets: int, batch: int, seen: int, fused: bool) -> Sums:
    """Cost a token for each of ``batch`` sequences after ``seen`` tokens, one socket's part."""
    tiles = 4
    return _deep(
        _models()[name]["layers"],
        lambda depth: _project(_llama_graph(name, depth, sockets, batch, 1, seen, fused), mode, arch, tiles, True),
    )


def prompt(name: str, mode: str, arch: str, sockets: int, batch: int, length: int, fused: bool) -> Sums:
    """Return the whole prompt at once, one socket's part."""
    return _deep(
        _models()[name]["layers"],
        lambda depth: _project(_llama_graph(name, depth, sockets, batch, length, 0, fused), mode, arch, 4, True),
    )


def _deep(layers: int, project: Callable[[int], Sums]) -> Sums:
    low, high = SHALLOW
    if FULL or layers <= high:
        return project(layers)
    return project(high).beyond(project(low), (layers - high) / (high - low))


def _sizes(name: str, batch: int, length: int) -> tuple[int, int]:
    model = _models()[name]
    return batch or model["batch"], length or model["length"]


@cache
def _models() -> Mapping[str, Any]:
    return yaml.safe_load(POINTS.read_text())["models"]


def _trace(make: Callable[[], torch.nn.Module], inputs: Mapping[str, Any]) -> ModelGraph:
    with torch.device("meta"):
        model = make().train()
    samba.from_torch_model_(model)
    return trace_model(model, dict(inputs), "workload").graph


def _input(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> samba.SambaTensor:
    return samba.SambaTensor(torch.empty(shape, dtype=dtype, device="meta"), name=name)


@cache
def _training_graph(name: str, layers: int, batch: int, length: int) -> ModelGraph:
    m, words = _models()[name], torch.int64
    tokens = _input("tokens", batch, length, dtype=words)
    labels = _input("labels", batch, length, dtype=words)
    if m["kind"] == "gpt":
        mask = _input("mask", 1, 1, length, length)
        inputs = {"tokens": tokens, "mask": mask, "labels": labels}
        return _trace(lambda: models.Gpt(layers, m["width"], m["heads"], length), inputs)
    if m["kind"] == "bert":
        inputs = {
            "tokens": tokens, "kinds": _input("kinds", batch, length, dtype=words),
            "mask": _input("mask", batch, 1, 1, length), "labels": labels,
            "follows": _input("follows", batch, dtype=words),
        }  # fmt: skip
        return _trace(lambda: models.Bert(layers, m["width"], m["heads"], length), inputs)
    if m["kind"] == "unet":
        image, classes = _input("image", batch, 3, length, length), _input("labels", batch, length, length, dtype=words)
        return _trace(lambda: models.UNet(m["width"], 3), {"image": image, "labels": classes})
    return _llama_graph(name, layers, 1, batch, length, 0, True, labels=labels)


@cache
def _llama_graph(
    name: str, layers: int, sockets: int, batch: int, length: int, seen: int, fused: bool,
    labels: samba.SambaTensor | None = None,
) -> ModelGraph:  # fmt: skip
    m = _models()[name]
    head, kv_heads = m["width"] // m["heads"], max(1, m["kv_heads"] // sockets)
    inputs: dict[str, Any] = {
        "tokens": _input("tokens", batch, length, dtype=torch.int64),
        "cos": _input("cos", 1, 1, length, head),
        "sin": _input("sin", 1, 1, length, head),
        "mask": _input("mask", 1, 1, length, seen or length),
    }
    if labels is not None:
        inputs["labels"] = labels
    if seen:
        cache_shape = (batch, kv_heads, seen, head)
        inputs["caches"] = [[_input(f"{kind}{i}", *cache_shape) for kind in "kv"] for i in range(layers)]
    sizes = (m["width"], m["heads"], m["kv_heads"], m["inner"], m["vocabulary"], sockets, fused)
    return _trace(lambda: models.Llama(layers, *sizes), inputs)


@cache
def _sections(graph_id: int, mode: str, arch: str, tiles: int, inference: bool) -> Sums:
    graph = _GRAPHS[graph_id]
    options = CompileOptions(
        name="workload", pef_path=Path("workload.pef"), mode=mode, arch=arch, num_tiles=tiles, inference=inference
    )
    parameters = tuple(value.name for value in graph.of_kind(ValueKind.PARAMETER))
    optimizers = () if inference else (OptimizerGroup("adamw", 0, parameters, ADAMW),)
    found = estimate_sections([TracedGraph(graph, optimizers)], options)
    return Sums(
        sum(s.cost.seconds for s in found),
        sum(s.cost.flops for s in found),
        sum(s.cost.bytes_in + s.cost.bytes_out + s.cost.bytes_weights for s in found),
        sum(s.cost.seconds * s.resources.pcus for s in found),
        sum(s.cost.seconds * s.resources.pmus for s in found),
        len(found),
    )


_GRAPHS: dict[int, ModelGraph] = {}


def _project(graph: ModelGraph, mode: str, arch: str, tiles: int, inference: bool) -> Sums:
    _GRAPHS[id(graph)] = graph
    return _sections(id(graph), mode, arch, tiles, inference)


# -- what is compared --------------------------------------------------------------------------------------------------


def step_ms(p: Mapping[str, Any], layers: int) -> float:
    """RDU time of a training step, with the all-reduce of f32 gradients where there are replicas."""
    step = training(p["model"], p["mode"], layers, p.get("tiles", 4), p.get("batch", 0), p.get("length", 0))
    return (step.seconds + _all_reduce_s(p, layers)) * 1e3


def _all_reduce_s(p: Mapping[str, Any], layers: int) -> float:
    replicas = p.get("replicas", 1)
    m = _models()[p["model"]]
    parameters = layers * 12 * m["width"] ** 2 + 30522 * m["width"] if replicas > 1 else 0
    return 2 * (replicas - 1) / replicas * 4 * parameters / (load_defaults()["rdu"]["gb_s"] * 1e9)


def samples_per_second(p: Mapping[str, Any], layers: int) -> float:
    """Return the samples a second of all instances; a program's own time on the host follows the RDU's."""
    batch, _ = _sizes(p["model"], p.get("batch", 0), p.get("length", 0))
    return p.get("instances", 1) * batch / (step_ms(p, layers) / 1e3 + p.get("host_s", 0.0))


def tokens_per_second(p: Mapping[str, Any], layers: int) -> float:
    return samples_per_second(p, layers) * _models()[p["model"]]["length"]


def section_count(p: Mapping[str, Any], layers: int) -> float:
    return training(p["model"], p["mode"], layers).sections


def layer_ratio(p: Mapping[str, Any], layers: int) -> float:
    low, high = SHALLOW
    o0, o3 = (training(p["model"], m, high).seconds - training(p["model"], m, low).seconds for m in ("o0", "o3"))
    return o0 / o3


def amortised_tflops(p: Mapping[str, Any], layers: int) -> float:
    step = training(p["model"], p["mode"], layers)
    return step.flops / step.seconds / 1e12


def amortised_bandwidth(p: Mapping[str, Any], layers: int) -> float:
    step = training(p["model"], p["mode"], layers)
    return step.bytes / step.seconds / 1e9


def amortised_pcus(p: Mapping[str, Any], layers: int) -> float:
    step = training(p["model"], p["mode"], layers)
    return step.pcu_seconds / step.seconds


def amortised_pmus(p: Mapping[str, Any], layers: int) -> float:
    step = training(p["model"], p["mode"], layers)
    return step.pmu_seconds / step.seconds


def first_token_ms(p: Mapping[str, Any], layers: int) -> float:
    return prompt_s(p) * 1e3


def token_ms(p: Mapping[str, Any], layers: int) -> float:
    return token_s(p, p["length"]) * 1e3


def total_tokens(p: Mapping[str, Any], layers: int) -> float:
    """Input and output tokens a second: the prompt, then as many tokens, the cache half full of output on average."""
    length = p["length"]
    return 2 * p["batch"] * length / (prompt_s(p) + length * token_s(p, length + length // 2))


def decode_rate(p: Mapping[str, Any], layers: int) -> float:
    return 1 / token_s(p, p["length"])


def fusion_gain(p: Mapping[str, Any], layers: int) -> float:
    return token_s({**p, "mode": "o0", "fused": False}, p["length"]) / token_s(p, p["length"])


def looping_gain(p: Mapping[str, Any], layers: int) -> float:
    return token_s(p, p["length"]) / _looped_s(p)


def roofline_part(p: Mapping[str, Any], layers: int) -> float:
    step = decoding(p["model"], "o3", "sn40l", 8, 1, p["length"], True)
    return step.bytes / find_chip("sn40l").hbm_bandwidth / _looped_s(p)


def _looped_s(p: Mapping[str, Any]) -> float:
    """Cost a token where the equal sections of the layers loop on the chip; sections by layer, as the vendor's are."""
    constants, chip = load_constants(), find_chip("sn40l")
    step = decoding(p["model"], "o3", "sn40l", 8, 1, p["length"], True)
    at_peak = step.bytes / chip.hbm_bandwidth / constants.looped_e_hbm
    return at_peak + _models()[p["model"]]["layers"] * constants.looped_launch_s


def switch_ms(p: Mapping[str, Any], layers: int) -> float:
    """Weights of 8B parameters in bf16 from DDR to the HBM of 8 sockets."""
    return 8.03e9 * 2 / 8 / load_constants().switch_bandwidth * 1e3


def token_s(p: Mapping[str, Any], seen: int) -> float:
    how = (p.get("mode", "o3"), p.get("arch", "sn40l"), p.get("sockets", 8))
    return decoding(p["model"], *how, p["batch"], seen, p.get("fused", True)).seconds + _exchange_s(p, 1)


def prompt_s(p: Mapping[str, Any]) -> float:
    how = (p.get("mode", "o3"), p.get("arch", "sn40l"), p.get("sockets", 8))
    return prompt(p["model"], *how, p["batch"], p["length"], p.get("fused", True)).seconds + _exchange_s(p, p["length"])


def _exchange_s(p: Mapping[str, Any], length: int) -> float:
    """Two all-reduces a layer of what the sockets' parts of a layer add up to."""
    m, sockets = _models()[p["model"]], p.get("sockets", 8)
    size = p["batch"] * length * m["width"] * 2
    return m["layers"] * 2 * 2 * (sockets - 1) / sockets * size / (load_defaults()["rdu"]["gb_s"] * 1e9)


# -- report ------------------------------------------------------------------------------------------------------------


def compare(only: str = "") -> Iterator[Point]:
    """Every published point whose name has ``only`` in it, in order."""
    for p in yaml.safe_load(POINTS.read_text())["points"]:
        by_layers = p.get("by_layers") or {_models()[p["model"]]["layers"]: p["published"]}
        for layers, published in by_layers.items():
            name = _name(p, layers)
            if only and only not in name:
                continue
            ours = globals()[p["what"]](p, layers)
            low, high = published if isinstance(published, list) else (published, published)
            use = p["use"] if isinstance(p["use"], str) else p["use"][layers]
            yield Point(name, low, high, ours, p.get("unit", "tokens/s"), use, p.get("note", ""))


def _name(p: Mapping[str, Any], layers: int) -> str:
    words = [p["model"], p.get("mode", ""), p["what"].replace("_", " ")]
    words += [f"{layers} layers"] if "by_layers" in p else []
    words += [f"{key} {p[key]}" for key in ("batch", "length", "instances", "sockets", "replicas") if key in p]
    return " ".join(word for word in words if word)


def medians(points: list[Point]) -> dict[str, float]:
    """Median ratio of all points, and by what they were used for. Ranges are left out: to lie inside is easy."""
    exact = [p for p in points if not p.is_range]
    found = {"all": statistics.median(p.ratio for p in exact)}
    for use in ("calibrated", "held out"):
        ratios = [p.ratio for p in exact if p.use == use]
        if ratios:
            found[use] = statistics.median(ratios)
    return found


def main() -> None:
    global FULL
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="write all points to this file")
    parser.add_argument("--only", default="", help="only points with this word in their name")
    parser.add_argument("--full", action="store_true", help="compile every layer; minutes")
    arguments = parser.parse_args()
    FULL = arguments.full
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    points = list(compare(arguments.only))
    table = Table(title="Cost model and published figures (ours: projected)")
    for column, justify in (("figure", "left"), ("unit", "left"), ("published", "right"), ("ours", "right"),
                            ("ratio", "right"), ("use", "left"), ("note", "left")):  # fmt: skip
        table.add_column(column, justify="right" if justify == "right" else "left")
    for p in points:
        ratio = f"{p.ratio:.2f}" if p.ratio <= 1.5 else f"[bold]{p.ratio:.2f}[/bold]"
        published = f"{p.published:.4g}" + (f" to {p.up_to:.4g}" if p.is_range else "")
        table.add_row(p.what, p.unit, published, f"{p.ours:.4g}", ratio, p.use, p.note)
    console = Console(width=200)
    console.print(table)
    missing = yaml.safe_load(POINTS.read_text())["not_modelled"]
    for item in missing:
        console.print(f"not modelled: {item['what']}: {item['why']}", highlight=False)
    found = medians(points)
    within = sum(p.ratio <= 1.5 for p in points)
    console.print(f"{within} of {len(points)} within 1.5x; median ratio "
                  + ", ".join(f"{use} {value:.2f}" for use, value in found.items()))  # fmt: skip
    if arguments.json:
        rows = [{**asdict(p), "ratio": p.ratio} for p in points]
        write_json(arguments.json, {"points": rows, "medians": found, "not_modelled": missing})


if __name__ == "__main__":
    main()
