"""A user's fusion rules: words that mean nothing are errors, and rules that match nothing are reported."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rdukit.errors import InvalidArgument, RuleError
from rdukit_compiler.patterns.review import check_words, find_nearest
from rdukit_compiler.rules import load_default_rules
from sambaflow import samba
from support import shows
from support.programs import LogReg, classifier_inputs, compile_model

pytestmark = shows("o1", "surface")


class Pooled(nn.Module):
    """conv2d → relu → max_pool2d → linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.lin = nn.Linear(18, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(F.max_pool2d(self.conv(x).relu(), 2).flatten(1))


def compiled(tmp_path: Path, text: str, mode: str = "o1", capture: pytest.CaptureFixture[str] | None = None) -> str:
    rules = tmp_path / "mine.yaml"
    rules.write_text(text)
    x = samba.randn(1, 1, 8, 8, name="x")
    compile_model(Pooled(), x, None, tmp_path, optim_level=mode, optimization_rules=str(rules), log_level="info")
    return capture.readouterr().out if capture is not None else ""


def rule(name: str, *op_types: str, heuristic: str = "") -> str:
    """A rule whose pattern is the chain of ``op_types``."""
    lines = [f"{name}:", "  priority: 5", *([f"  heuristic: {heuristic}"] if heuristic else []), "  pattern:"]
    for number, word in enumerate(op_types):
        child = f", child: e{number + 1}" if number + 1 < len(op_types) else ""
        lines.append(f"    e{number}: {{op_type: {word}{child}}}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("maxpool2d", "'max_pool2d'"), ("conv_2d", "'conv2d'"), ("linaer", "'linear'"), ("layernorm", "'layer_norm'")],
)
def test_an_unknown_operator_is_an_error_that_names_the_nearest(wrong: str, meant: str, tmp_path: Path) -> None:
    text = rule("block", "relu", wrong)
    with pytest.raises(RuleError, match=rf"mine\.yaml, line 5: rule 'block', entry 'e1'.*{wrong}.*mean .*{meant}"):
        compiled(tmp_path, text)
    assert not (tmp_path / "out").exists()


def test_an_unknown_heuristic_is_an_error_that_names_the_nearest_and_all(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match=r"line 1: rule 'block'.*'SAFE_GEM' .*mean 'SAFE_GEMM'.*MHA.*--heuristics"):
        compiled(tmp_path, rule("block", "conv2d", "relu", heuristic="SAFE_GEM"))


def test_words_are_checked_in_every_mode_and_not_only_where_rules_count(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="maxpool2d"):
        compiled(tmp_path, rule("block", "maxpool2d"), mode="o3")


def test_a_rule_whose_operator_the_graph_lacks_is_reported_with_what_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = compiled(tmp_path, rule("pool", "relu", "max_pool3d") + rule("fine", "conv2d", "relu"), capture=capsys)
    (warned,) = [line for line in out.splitlines() if "matched nothing" in line]
    assert warned.startswith("[warning Samba]: rule 'pool' (")
    assert "the graph has no max_pool3d (entry 'e1') (did you mean 'max_pool2d'" in warned
    assert "it has conv2d, flatten, linear, max_pool2d, relu" in warned
    assert "[info    ]: rule fine made 1 section" in out


def test_a_rule_that_is_connected_otherwise_or_comes_too_late_is_reported_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = compiled(tmp_path, rule("turned", "relu", "conv2d"), capture=capsys)
    assert "rule 'turned'" in out
    assert "not connected as the pattern says" in out
    late = rule("late", "relu", "max_pool2d").replace("priority: 5", "priority: 1")
    out = compiled(tmp_path, rule("first", "conv2d", "relu") + late, capture=capsys)
    (warned,) = [line for line in out.splitlines() if "matched nothing" in line]
    assert "rule 'late'" in warned
    assert "or first fused them earlier" in warned


def test_rules_outside_o1_are_reported_once_as_without_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = compiled(tmp_path, rule("a", "conv2d") + rule("b", "relu"), mode="o3", capture=capsys)
    assert [line for line in out.splitlines() if "warning" in line] == [
        "[warning Samba]: fusion rules apply only in mode o1, but this compile uses o3; add -o1"
    ]


def test_the_rules_that_come_with_the_compiler_are_sound_and_never_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rdukit_compiler.heuristics import heuristic_names

    check_words(load_default_rules(), [], heuristic_names())
    compile_model(LogReg(), classifier_inputs(), None, tmp_path, optim_level="o1", log_level="info")
    assert "matched nothing" not in capsys.readouterr().out


def test_words_of_the_vendors_published_rules_are_known() -> None:
    words = (
        "linear matmul add mul div pow mean rsqrt relu gelu silu softmax layer_norm to type_ transpose view reshape "
        "split getitem cat neg squeeze unsqueeze expand scatter masked_fill triufill rsub zipmapreduce addmm bmm "
        "dropout scaled_dot_product_attention embedding conv2d cross_entropy topk argmax repeat_interleave lstm"
    ).split()
    text = "".join(rule(f"r{number}", word) for number, word in enumerate(words))
    from rdukit_compiler.patterns.syntax import parse_rules

    check_words(parse_rules(text, "vendor.yaml"), [], ())


def test_the_nearest_words_are_those_equal_without_underscores_then_similar_ones() -> None:
    known = ["max_pool2d", "max_pool3d", "avg_pool2d", "relu", "_max_pool2d_x"]
    assert find_nearest("maxpool2d", known)[0] == "max_pool2d"
    assert find_nearest("zzz", known) == []


def test_rules_may_come_from_several_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "pool.yaml", tmp_path / "conv.yaml"]
    files[0].write_text(rule("pool", "relu", "max_pool2d"))
    files[1].write_text(rule("flat", "flatten", "linear"))
    x = samba.randn(1, 1, 8, 8, name="x")
    options = {"optim_level": "o1", "log_level": "info"}
    compile_model(Pooled(), x, None, tmp_path, optimization_rules=[str(files[0]), files[1]], **options)
    said = capfd.readouterr().out
    assert "rule pool made 1 section" in said and "rule flat made 1 section" in said
    with pytest.raises(InvalidArgument, match=r"optimization_rules is \[3\]; expected the path of a file, or a list"):
        compile_model(Pooled(), x, None, tmp_path, optimization_rules=[3], **options)
