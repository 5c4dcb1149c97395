"""Metrics that boxes declare: of all shipped ones, of a task and a box together, and what a run reports besides."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rdukit.errors import InvalidArgument, NotFound
from rdukit_modelbox.cli.main import box as box_commands
from rdukit_modelbox.contract.box import Box, box_names, find_box_file, load_box
from rdukit_modelbox.contract.describe import describe
from rdukit_modelbox.contract.metrics import find_undeclared, metrics_of
from rdukit_modelbox.contract.parts import Verb
from rdukit_modelbox.recipes.recipe import load_recipes
from support import shows

pytestmark = shows("modelbox", "box", "recipes", "every box")

HEAD = (
    "apiVersion: rdukit.dev/v1\nextends: image-classification\nname: mine\ntitle: T\ndescription: D\nmodel: logreg\n"
    'compilerVersion: "0.1"\nsizes: {num_features: 784, num_classes: 10}\n'
)


def load(folder: Path, text: str = "") -> Box:
    (folder / "modelbox.yaml").write_text(HEAD + text)
    return load_box(folder / "modelbox.yaml")


@pytest.mark.parametrize("name", box_names())
def test_a_shipped_box_declares_what_its_verbs_and_recipes_report(name: str) -> None:
    box = load_box(find_box_file(name))
    for verb in box.verbs:
        assert metrics_of(box, verb), verb
    assert {"loss", "throughput"} <= {m.name for m in metrics_of(box, Verb.TRAIN) if m.reported != "result"}
    declared = {metric.name for metric in box.metrics} | {"samples_per_s", "tokens_per_s"}  # a recipe's own
    for recipe in load_recipes(str(box.folder)).values():
        assert set(recipe.reached or {}) | set(recipe.before or {}) <= declared


def test_a_box_adds_to_its_tasks_metrics_and_replaces_them_by_verb_and_name(tmp_path: Path) -> None:
    box = load(
        tmp_path,
        "metrics:\n"
        "  - {name: accuracy, verbs: [train], better: higher, unit: share, help: Mine.}\n"
        "  - {name: f1, verbs: [evaluate], better: higher, help: F.}\n",
    )
    accuracy = {verb: m for verb in (Verb.TRAIN, Verb.INFER) for m in metrics_of(box, verb) if m.name == "accuracy"}
    assert (accuracy[Verb.TRAIN].help, accuracy[Verb.TRAIN].unit) == ("Mine.", "share")
    assert accuracy[Verb.INFER].help != "Mine." and accuracy[Verb.INFER].unit is None
    assert "f1" in {m.name for m in metrics_of(box, Verb.EVALUATE)} - {m.name for m in metrics_of(box, Verb.TRAIN)}
    fewer = load(tmp_path, "verbs: [train]\n")
    assert {verb for metric in fewer.metrics for verb in metric.verbs} == {Verb.TRAIN}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("metrics:\n  - {name: f1, verbs: [train], better: more, help: F.}\n", "metrics.0.better"),
        ("metrics:\n  - {name: 'a b', verbs: [train], help: F.}\n", "metrics.0.name"),
        ("metrics:\n  - {name: f1, verbs: [train, train], help: F.}\n", "more than one metric named 'f1'"),
        (
            "verbs: [train]\nmetrics:\n  - {name: f1, verbs: [infer], help: F.}\n",
            "infer is used but not listed under verbs",
        ),
        ("verbs: [train]\nuncached: [infer]\n", "infer is used but not listed under verbs"),
        ("uncached: [fly]\n", "uncached.0"),
    ],
)
def test_what_does_not_fit_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=r"modelbox\.yaml:\d+:\d+: ") as caught:
        load(tmp_path, text)
    assert said in caught.value.message


def test_a_verb_that_is_run_each_time_says_so_on_both_wires(tmp_path: Path) -> None:
    verbs = {verb["name"]: verb for verb in describe(load(tmp_path, "uncached: [infer]\n"))["verbs"]}  # type: ignore[attr-defined]
    assert verbs["infer"]["uncached"] is True and "uncached" not in verbs["train"]


def test_only_numbers_that_are_not_declared_are_named(tmp_path: Path) -> None:
    box = load(tmp_path)
    reported = {"accuracy": 0.9, "split": "test", "ok": True, "acuracy": 1.0, "throughput": 3.0, "confusion": {"a": 1}}
    assert find_undeclared(box, Verb.TRAIN, reported) == ["acuracy", "throughput"]
    assert find_undeclared(box, Verb.PREPROCESS, {"train_samples": 3, "samples": 4}) == ["samples"]
    assert (
        find_undeclared(load(tmp_path, "metrics:\n  - {name: f1, verbs: [evaluate], help: F.}\n"), Verb.COMPILE, {})
        == []
    )


def test_the_figures_of_a_kept_run_are_checked_by_validate(tmp_path: Path) -> None:
    load(tmp_path)
    report = tmp_path / "report.json"

    def check(*words: str) -> str:
        return CliRunner().invoke(box_commands, ["validate", str(tmp_path), *words], catch_exceptions=False).output

    report.write_text(json.dumps({"accuracy": 0.9}))
    assert "valid ModelBox" in check("--reported", f"train={report}")
    report.write_text(json.dumps({"accuracy": 0.9, "acuracy": 1.0}))
    with pytest.raises(InvalidArgument, match=r"'acuracy'\. Did you mean 'accuracy'"):
        check("--reported", f"train={report}")
    with pytest.raises(InvalidArgument, match="no verb 'fly'"):
        check("--reported", f"fly={report}")
    with pytest.raises(NotFound, match="the file does not exist"):
        check("--reported", f"train={tmp_path / 'none.json'}")
    report.write_text("[1]")
    with pytest.raises(InvalidArgument, match="expected a JSON object"):
        check("--reported", f"train={report}")
