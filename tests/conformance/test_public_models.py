"""Models of transformers, tiny and with random weights, are those of eager torch; ``docs/models.md`` tries all."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from support import first_short, shows
from support.forked import run_python

pytestmark = shows("models", "pytorch")

TREE = Path(__file__).parents[2]
PROGRAM = """
import os, sys, warnings
sys.path.insert(0, sys.argv[1])
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", RDUKIT_NODE="private", RDUKIT_KERNELS="portable")
warnings.filterwarnings("ignore")
from build import build
from check import try_stage
from families import transformers_cases
(case,) = [case for case in transformers_cases() if case.name == sys.argv[2]]
built = build(case)
for stage, inputs in (("inference", built.inputs), ("training", {**built.inputs, **built.labels})):
    outcome, reason, *_ = try_stage(built.make, inputs, stage, "o3", "portable", "f32")
    print(stage, outcome, reason)
"""


@pytest.mark.long
@pytest.mark.parametrize("name", first_short(["bert", "vit", "t5", "wav2vec2"]))
def test_a_model_of_transformers_infers_and_trains_as_in_eager_torch(name: str) -> None:
    ran = run_python(["-c", PROGRAM, str(TREE / "scripts/models"), name], kind="sambaflow", timeout_s=300)
    assert ran.returncode == 0, ran.stderr
    assert [line.split()[:2] for line in ran.stdout.splitlines()] == [["inference", "right"], ["training", "right"]]


@pytest.mark.long
def test_native_kernels_of_several_models_are_built_together_and_used(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    chosen = ["--suite", "transformers", "--only", "bert,gpt2", "--stage", "inference"]
    way = ["--kernels", "native", "--check", "off", "--together", "2"]
    command = [str(TREE / "scripts/models/run.py"), "--lines", str(lines), *chosen, *way]
    ran = run_python(command, kind="sambaflow", timeout_s=600)
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    assert sorted((r["name"], r["outcome"], r["kernels"]) for r in found) == [
        ("bert", "right", "native"), ("gpt2", "right", "native"),
    ]  # fmt: skip
    assert all(r["natives"] == r["sections"] > 0 for r in found)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """``scripts/models/page.py``."""
    monkeypatch.syspath_prepend(str(TREE / "scripts/models"))
    return importlib.import_module("page")


def test_the_page_of_public_models_is_what_the_data_gives_and_counts_none_as_wrong(page: ModuleType) -> None:
    text = (TREE / "docs/models.json").read_text()
    sweeps = page.load(text)
    assert page.dump(sweeps) == text
    assert (TREE / "docs/models.md").read_text() == page.write(sweeps)
    rows = [line.split("|")[1:-1] for line in page.write(sweeps).splitlines() if "tiny |" in line]
    assert len(rows) >= 2, "transformers, in inference and in training"
    assert [(int(row[5]), int(row[6])) for row in rows] == [(0, 0)] * len(rows), "wrong, bare errors"


def test_a_sweep_of_models_replaces_what_it_tried_again_by_the_same_kernels(page: ModuleType) -> None:
    def record(name: str, kernels: str, outcome: str, **more: object) -> dict[str, object]:
        way = {"mode": "o3", "precision": "f32", "kernels": kernels, "check": "off"}
        return {"suite": "timm", "name": name, "stage": "training", "outcome": outcome, "reason": "", **way, **more}

    empty = page.Sweeps({}, {}, ())
    first = page.merge(empty, [record(name, "portable", "right") for name in "ab"], {"timm": "1"}, {"timm": 2})
    assert "native kernels" not in page.write(first)
    found = [
        record("a", "native", "wrong", reason="off by 1 | 2", sections=3, natives=2),
        record("b", "native", "right", sections=1, natives=1),
        record("b", "portable", "right", mode="o1"),  # the page is about O3
    ]
    both = page.load(page.dump(page.merge(first, found, {"timm": "2"}, {"timm": 3})))
    assert both.versions == {"portable": {"timm": "1"}, "native": {"timm": "2"}}
    text = page.write(both)
    assert "2 models, drawn from all by a seed.\n3 of the 4 sections that can be native were." in text
    assert "was off in 2 of 2 results" in text
    assert "Right by portable kernels and not by native ones: a (training)." in text
    assert "| timm | a | training | wrong | off by 1 \\| 2 |" in text
    again = page.write(page.merge(both, [record("a", "native", "right")], {"timm": "2"}, {"timm": 3}))
    assert "Right by portable kernels and not by native ones: none." in again
