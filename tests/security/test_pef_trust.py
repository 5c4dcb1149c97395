"""A PEF's libraries are code: only what this installation made for this very PEF is loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rdukit.pef import read_pef
from rdukit.pef.trust import key_path, write_derived_key
from support import shows
from support.pefs.examples import forge_pef, write_example_pef

pytestmark = shows("security", "native")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))


def other_library(index: dict[str, Any], kernels: dict[str, Any], entries: dict[str, bytes]) -> None:
    """Exchange the library."""
    name = next(name for name in entries if name.startswith("so/"))
    entries[name] = b"\x7fELF of somebody else"


def other_shape(index: dict[str, Any], kernels: dict[str, Any], entries: dict[str, bytes]) -> None:
    """Leave the library, and change what it gives."""
    index["pef"]["symbols"]["y"]["shape"] = [4000, 3]


def other_order(index: dict[str, Any], kernels: dict[str, Any], entries: dict[str, bytes]) -> None:
    """Leave the library, and exchange its outputs."""
    index["pef"]["sections"][0]["outputs"].reverse()


def test_what_this_installation_compiled_is_trusted(tmp_path: Path) -> None:
    assert read_pef(write_example_pef(tmp_path / "e.pef", natives=True)).is_trusted


@pytest.mark.parametrize("change", [other_library, other_shape, other_order])
def test_a_signed_pef_that_somebody_changed_is_not(
    tmp_path: Path, change: Callable[[dict[str, Any], dict[str, Any], dict[str, bytes]], None]
) -> None:
    path = write_example_pef(tmp_path / "e.pef", natives=True)
    forge_pef(path, change)
    assert not read_pef(path).is_trusted


@pytest.mark.parametrize("signature", ["", None, 7, [], "ü", "0" * 64])
def test_a_signature_of_any_other_form_is_none(tmp_path: Path, signature: object) -> None:
    path = write_example_pef(tmp_path / "e.pef", natives=True)
    forge_pef(path, lambda index, kernels, entries: index.update(signature=signature))
    assert not read_pef(path).is_trusted


def test_what_a_tenants_fence_signed_is_trusted_there_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homes = {name: tmp_path / "home" / "tenants" / name for name in ("one", "two")}
    for name, home in homes.items():
        write_derived_key(home, f"tenant:{name}")
    assert len({key_path(home).read_bytes() for home in (tmp_path / "home", *homes.values())}) == 3
    assert all(key_path(home).stat().st_mode & 0o777 == 0o600 for home in homes.values())

    monkeypatch.setenv("RDUKIT_HOME", str(homes["one"]))
    path = write_example_pef(tmp_path / "e.pef", natives=True)
    assert read_pef(path).is_trusted
    for other in (tmp_path / "home", homes["two"]):
        monkeypatch.setenv("RDUKIT_HOME", str(other))
        assert not read_pef(path).is_trusted


def test_a_tenants_key_is_the_same_after_it_was_lost_or_exchanged(tmp_path: Path) -> None:
    home = tmp_path / "home" / "tenants" / "one"
    write_derived_key(home, "tenant:one")
    key = key_path(home).read_bytes()
    key_path(home).write_bytes(b"x" * 32)
    write_derived_key(home, "tenant:one")
    assert key_path(home).read_bytes() == key
