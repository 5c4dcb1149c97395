"""Which way a matrix product goes, and that the measured answer is kept."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from rdukit.errors import InvalidArgument
from rdukit_compiler.backend import measure_routes, routes
from rdukit_compiler.backend.measure_routes import OwnProducts, load_routes
from rdukit_compiler.backend.routes import Route, Routes, choose_route, parse_routes
from support import shows

pytestmark = shows("engine", "native", "settings")

_WIDE = Routes(bf16="f32", f32="onednn")
_PLAIN = Routes(bf16="native", f32="blas")
_OWN = Routes(few="own")


@pytest.mark.parametrize(
    ("chosen", "dtype", "m", "in_rows", "expected"),
    [
        (_PLAIN, "float32", 1, True, Route.ROWS),
        (_PLAIN, "bfloat16", 8, True, Route.ROWS),
        (_PLAIN, "float32", 16, True, Route.ROWS),
        (_PLAIN, "float32", 17, True, None),
        (_PLAIN, "bfloat16", 16, True, Route.ROWS),
        (_PLAIN, "bfloat16", 17, True, None),
        (_PLAIN, "float32", 1, False, None),
        (_WIDE, "bfloat16", 1, False, Route.FLOAT),
        (_WIDE, "bfloat16", 128, True, Route.FLOAT),
        (_WIDE, "float32", 128, False, Route.ONEDNN),
        (_WIDE, "float32", 1, True, Route.ROWS),
        (_WIDE, "float32", 1, False, None),
        (_WIDE, "float64", 128, True, None),
        (_WIDE, "int64", 1, True, None),
    ],
)
def test_the_route_depends_on_dtype_rows_and_machine(
    chosen: Routes, dtype: str, m: int, in_rows: bool, expected: Route | None
) -> None:
    assert choose_route(chosen, dtype, m, 256, 256, in_rows) == expected


@pytest.mark.parametrize(
    ("dtype", "m", "k", "in_rows", "is_row_major", "expected"),
    [
        ("float32", 8, 256, True, False, Route.ROWS),
        ("float32", 12, 256, True, False, Route.ROWS),
        ("float32", 13, 256, True, False, Route.FEW),
        ("float32", 9, 256, False, True, Route.FEW),
        ("float32", 64, 256, False, True, Route.FEW),
        ("float32", 32, 256, False, False, None),
        ("float32", 65, 256, True, False, None),
        ("float32", 65, 64, False, True, Route.FEW),
        ("float32", 65, 64, True, False, None),
        ("float32", 65, 8, False, True, None),
        ("bfloat16", 32, 256, True, False, None),
    ],
)
def test_our_own_product_is_for_few_rows_or_terms_that_lie_side_by_side(
    dtype: str, m: int, k: int, in_rows: bool, is_row_major: bool, expected: Route | None
) -> None:
    assert choose_route(_OWN, dtype, m, 1024, k, in_rows, is_row_major) == expected
    assert choose_route(_PLAIN, dtype, m, 1024, k, in_rows, is_row_major) != Route.FEW


@pytest.mark.parametrize(
    ("dtype", "m", "k", "in_rows", "expected"),
    [
        ("bfloat16", 9, 768, True, Route.LINEAR),
        ("bfloat16", 512, 768, True, Route.LINEAR),
        ("bfloat16", 513, 768, True, None),
        ("bfloat16", 8, 768, True, Route.ROWS),
        ("bfloat16", 128, 767, True, None),
        ("bfloat16", 128, 768, False, None),
        ("float32", 128, 768, True, None),
    ],
)
def test_our_own_linear_layer_is_for_some_bf16_rows_and_weights_in_rows(
    dtype: str, m: int, k: int, in_rows: bool, expected: Route | None
) -> None:
    assert choose_route(Routes(linear="own"), dtype, m, 1024, k, in_rows) == expected
    assert choose_route(Routes(), dtype, m, 1024, k, in_rows) != Route.LINEAR


def test_instructions_that_the_processor_lacks_cannot_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_COMPILE_ROUTES", "linear=own")
    monkeypatch.setattr(measure_routes, "has_avx512_bf16", lambda: False)
    with pytest.raises(InvalidArgument, match="avx512_bf16; expected linear=aten"):
        load_routes()


def test_tiny_and_empty_products_stay_with_aten() -> None:
    assert choose_route(_WIDE, "bfloat16", 128, 8, 8, True) is None
    assert choose_route(_WIDE, "bfloat16", 0, 256, 256, True) is None


def test_routes_are_read_as_they_are_written_and_wrong_ones_refused_with_the_legal_ones() -> None:
    assert parse_routes(_WIDE.text()) == _WIDE
    assert parse_routes("f32=onednn") == Routes("native", "onednn")
    with pytest.raises(InvalidArgument, match="or linear=own or convolution=onednn or convolution=winograd"):
        parse_routes("bf16=fast")


def test_the_machine_is_measured_once_and_again_when_the_file_is_damaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured: list[int] = []

    def measure() -> Routes:
        measured.append(1)
        return _WIDE

    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path))
    monkeypatch.delenv("RDUKIT_COMPILE_ROUTES", raising=False)
    monkeypatch.setattr(measure_routes, "measure_routes", measure)
    monkeypatch.setattr(measure_routes, "find_cpp_compiler", lambda: "g++")
    assert load_routes() == load_routes() == _WIDE
    assert len(measured) == 1
    (path,) = (tmp_path / "machine").glob("routes-*.json")
    assert json.loads(path.read_bytes()) == {
        "bf16": "f32",
        "f32": "onednn",
        "few": "f32",
        "rows": "ahead",
        "attention": "aten",
        "linear": "aten",
        "convolution": "onednn",
    }
    path.write_text('{"bf16": "f3')
    assert load_routes() == _WIDE
    assert len(measured) == 2


def test_without_a_compiler_our_own_product_is_measured_once_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compilers: list[str | None] = [None]
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path))
    monkeypatch.delenv("RDUKIT_COMPILE_ROUTES", raising=False)
    monkeypatch.setattr(measure_routes, "find_cpp_compiler", lambda: compilers[0])
    monkeypatch.setattr(measure_routes, "measure_routes", lambda: Routes(few="own" if compilers[0] else "f32"))
    assert load_routes().few == "f32"
    compilers[0] = "g++"
    assert load_routes().few == "own"
    compilers[0] = None
    assert load_routes().few == "own"


def test_the_setting_is_asked_before_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_COMPILE_ROUTES", "bf16=native,f32=onednn")
    assert load_routes() == Routes("native", "onednn")


class _Products(OwnProducts):
    """Our products, computed by torch: reading in a sweep as many times as the test says."""

    sweeps = 1
    has_bf16 = True

    def __init__(self) -> None:
        pass

    def multiply(self, a: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(torch.mm(a, b))

    def linear(self, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> None:
        torch.mm(x, w.t(), out=y)

    def convolve(self, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(torch.nn.functional.conv2d(x, w, padding=1))

    def read_rows(self, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, is_sweep: bool) -> None:
        for _ in range(self.sweeps if is_sweep else 2):
            w[:1024].float().mv(x)


@pytest.mark.parametrize(("sweeps", "rows"), [(0, "sweep"), (8, "ahead")])
def test_measuring_gives_legal_routes(monkeypatch: pytest.MonkeyPatch, sweeps: int, rows: str) -> None:
    monkeypatch.setattr(_Products, "sweeps", sweeps)
    monkeypatch.setattr(measure_routes, "build_own_products", _Products)
    found = measure_routes.measure_routes()
    assert found.bf16 in routes.BF16_WAYS and found.f32 in routes.F32_WAYS and found.few in routes.FEW_WAYS
    assert found.rows == rows and found.attention in routes.ATTENTION_WAYS
    assert found.linear in routes.LINEAR_WAYS and found.convolution in routes.CONVOLUTION_WAYS
    assert parse_routes(found.text()) == found


def test_products_of_ours_that_cannot_be_compiled_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_routes, "build_own_products", lambda: None)
    found = measure_routes.measure_routes()
    assert found == Routes(found.bf16, found.f32)


def test_a_way_that_is_much_slower_than_another_is_soon_left_out() -> None:
    now, calls = [0.0], {"fast": 0, "near": 0, "slow": 0, "lacking": 0}

    def call(name: str, seconds: float) -> None:
        now[0] += seconds
        calls[name] += 1
        if name == "lacking":
            raise RuntimeError("this torch has no such operator")

    seconds = {"fast": 1.0, "near": 2.5, "slow": 7.0, "lacking": 0.0}
    ways = {name: partial(call, name, spent) for name, spent in seconds.items()}
    took = measure_routes._time_in_turn(ways, lambda: now[0])
    assert took == {"fast": 1.0, "near": 2.5, "slow": 7.0, "lacking": float("inf")}
    assert (calls["fast"], calls["near"], calls["slow"]) == (10, 10, 3)
