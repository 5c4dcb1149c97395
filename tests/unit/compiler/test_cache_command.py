"""``rdukit cache`` shows what is kept and for whom, and removes what nobody here can use."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from rdukit.files.disk_cache import store_cached
from rdukit_compiler.backend.kernel_cache import own_place
from rdukit_compiler.backend.native import build_word
from rdukit_compiler.cli import cache
from rdukit_compiler.passes.section_cache import compiler_digest
from support import shows

pytestmark = shows("cache", "engine")

BUILT = f"{build_word()}-routes"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two libraries of this version, one for another processor, one of another torch, one of an earlier layout, one
    that was built in another way; two section files of this compiler and one of another; the key."""
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path))
    kernels, (torch, processor) = tmp_path / "kernels", own_place()
    for number, folder in enumerate(
        (
            f"{torch}/{processor}/{BUILT}",
            f"{torch}/arm64-0/{BUILT}",
            f"2.0.0-cpu/{processor}/{BUILT}",
            f"{torch}-{processor}-2",
            f"{torch}/{processor}/build-1-x",
        )
    ):
        store_cached(kernels / folder / "a.so", bytes(1000))
        os.utime(kernels / folder / "a.so", (time.time() - 60 * number - 60,) * 2)
    store_cached(kernels / torch / processor / BUILT / "b.so", bytes(2000))
    store_cached(kernels / "inductor" / "x" / "made.cpp", bytes(300))
    (kernels / "trust.key").write_bytes(bytes(32))
    for compiler, names in ((compiler_digest(), "ab"), ("0123456789abcdef", "c")):
        for name in names:
            store_cached(tmp_path / "sections" / compiler / f"{name}.json", bytes(100))
    return tmp_path


@pytest.fixture
def run(home: Path) -> Callable[..., str]:
    def runs(*arguments: str) -> str:
        result = CliRunner().invoke(cache, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return runs


def test_show_has_a_row_for_each_torch_and_processor(run: Callable[..., str]) -> None:
    rows = json.loads(run("show", "--json"))["rows"]
    torch, processor = own_place()
    assert {(r["what"], r["torch"], r["processor"], r["files"], r["is_usable_here"]) for r in rows} == {
        ("kernels", torch, processor, 2, True),
        ("kernels", torch, processor, 1, False),
        ("kernels", torch, "arm64-0", 1, False),
        ("kernels", "2.0.0-cpu", processor, 1, False),
        ("kernels", "-", "-", 1, False),
        ("inductor", "-", "-", 1, True),
        ("sections", "-", "-", 2, True),
        ("sections", "-", "-", 1, False),
    }
    shown = run("show").splitlines()
    assert shown[0].split() == ["WHAT", "FILES", "SIZE", "LAST", "USED", "HERE", "TORCH", "PROCESSOR", "BUILT"]
    assert len(shown) == 1 + len(rows) + 2
    assert "of 2 GiB (compile.kernel_cache_mib)" in shown[-2]


def test_trim_removes_what_other_versions_left(home: Path, run: Callable[..., str]) -> None:
    freed = json.loads(run("trim", "--json"))["freed_bytes"]
    torch, processor = own_place()
    assert sorted(str(path.relative_to(home)) for path in home.rglob("*.so")) == [
        f"kernels/{torch}/arm64-0/{BUILT}/a.so",
        f"kernels/{torch}/{processor}/{BUILT}/a.so",
        f"kernels/{torch}/{processor}/{BUILT}/b.so",
    ]
    assert [path.parent.name for path in home.rglob("*.json")] == [compiler_digest()] * 2
    assert freed == 3 * (1000 + 72) + 100 + 72
    assert not (home / "kernels" / "2.0.0-cpu").exists()


def test_trim_to_a_size_takes_sections_first_and_then_what_was_used_longest_ago(
    home: Path, run: Callable[..., str]
) -> None:
    told = json.loads(run("trim", "--bytes", "2100", "--json"))
    assert told["left_bytes"] == 2072
    assert [path.name for path in home.rglob("*.so")] == ["b.so"]
    assert json.loads(run("trim", "--bytes", "0", "--json"))["left_bytes"] == 0


def test_clear_removes_all_but_the_key(home: Path, run: Callable[..., str]) -> None:
    assert run("clear").endswith("freed, 0 B left\n")
    assert run("show").splitlines()[0] == "nothing is kept"
    assert (home / "kernels" / "trust.key").exists()
    assert not list(home.rglob("*.so"))


def test_a_home_without_any_folder_is_shown_trimmed_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "absent"))
    for arguments in (["show"], ["trim"], ["clear"], ["trim", "--bytes", "5"]):
        result = CliRunner().invoke(cache, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
    assert not (tmp_path / "absent").exists()
