"""Bundle files: what is legal, what is told of what is not, and what of a bundle fits into memory."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rdukit.cli.tables import format_table
from rdukit.errors import InvalidArgument, NotFound
from rdukit.hardware import find_chip
from rdukit_serving.experts.bundle import bundle_schema, load_bundle, parse_bundle
from rdukit_serving.experts.command import bundle
from rdukit_serving.experts.legalizer import (
    BundleFit,
    ConfigurationSizes,
    ExpertSizes,
    describe_fit,
    device_memory,
    fit_tables,
    legalize,
)
from support import shows

pytestmark = shows("bundles", "bundle")

TEXT = """\
apiVersion: rdukit.dev/v1
kind: Bundle
name: five
memory: {host: 2GiB, hbm: 64GiB}
configurations:
  - {name: 4k, pef: llama.pef, context: 4096, batch: 4, precision: bf16}
experts:
  - {name: poet, configuration: 4k, checkpoint: poet, pinned: true}
  - name: coder
    configuration: 4k
    checkpoint: coder/model.safetensors
    aliases: [meta-llama/Llama-3.1-8B-Instruct]
"""
GIB = 1 << 30


def test_a_bundle_says_who_is_meant_by_which_name() -> None:
    bundle, _ = parse_bundle(TEXT, "bundle.yaml")
    assert bundle.names() == {"poet": "poet", "coder": "coder", "meta-llama/Llama-3.1-8B-Instruct": "coder"}
    assert bundle.memory.host == 2 * GIB and bundle.sockets == 1
    jsonschema.Draft202012Validator(bundle_schema()).validate(bundle.model_dump(exclude_none=True, mode="json"))


@pytest.mark.parametrize(
    ("old", "new", "line", "told"),
    [
        ("host: 2GiB", "host: 2GB", 4, "memory.host: '2GB' is not valid; expected a size such as 512MiB"),
        ("pinned: true", "pinnd: true", 8, "experts.0.pinnd: unknown key; did you mean 'pinned'?"),
        ("configuration: 4k\n", "configuration: 8k\n", 10, "'8k' is not a configuration of the bundle; expected 4k"),
        ("meta-llama/Llama-3.1-8B-Instruct", "poet", 12, "experts.1.aliases.0: 'poet' already names 'poet'"),
        ("name: five\n", "name: five\nrouter: {name: poet, file: r}\n", 4, "router.name: 'poet' already names 'poet'"),
        (
            "name: five\n",
            "name: five\nrouter: {name: r, file: r, default: x}\n",
            4,
            "router.default: 'x' is not an expert",
        ),
        ("batch: 4", "batch: 0", 6, "configurations.0.batch: 0 is not valid; expected at least 1"),
        (
            "batch: 4",
            "draft: {expert: nobody}",
            6,
            "configurations.0.draft: 'nobody' is not an expert; expected poet, coder",
        ),
        ("batch: 4", "draft: {pef: x.pef}", 6, "configurations.0.draft: it needs an expert, or pef and checkpoint"),
        ("batch: 4", "draft: {expert: poet, pef: x}", 6, "configurations.0.draft: it names both an expert and files"),
        ("kind: Bundle", "kind: Job", 2, "'Job' is not valid; expected 'Bundle'"),
        ("name: five", "name: ../five", 3, "'../five' is not valid; expected text with the pattern"),
        ("apiVersion: rdukit.dev/v1\n", "", 1, "apiVersion: missing"),
        ("name: coder", "name: coder\n    name: poet", 10, "name"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(old: str, new: str, line: int, told: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_bundle(TEXT.replace(old, new), "bundle.yaml")
    assert f"bundle.yaml:{line}:" in refused.value.message and told in refused.value.message


def test_the_command_names_the_line_of_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "bundle.yaml"
    file.write_text(TEXT.replace("batch: 4", "batch: 0"))
    refused = CliRunner().invoke(bundle, ["check", str(file)]).exception
    assert isinstance(refused, InvalidArgument) and "bundle.yaml:6:" in refused.message


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_bundle(text, "bundle.yaml")


def test_a_bundle_names_files_of_its_own_folder_only(tmp_path: Path) -> None:
    folder, other = tmp_path / "bundle", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (other / "secret").write_text("x")
    (folder / "link").symlink_to(other / "secret")
    (folder / "bundle.yaml").write_text(TEXT)
    files = load_bundle(folder / "bundle.yaml")
    for path in ("../other/secret", str(other / "secret"), "link"):
        with pytest.raises(InvalidArgument, match=r"bundle.yaml:8:.*is outside of the bundle's folders"):
            files.find(path, ("experts", 0, "name"))
    with pytest.raises(NotFound, match="there is no 'poet'"):
        files.find("poet", ("experts", 0, "checkpoint"))
    mounted = load_bundle(folder / "bundle.yaml", [other])
    assert mounted.find("link", ("experts", 0, "checkpoint")) == (other / "secret").resolve()
    with pytest.raises(NotFound, match="there is no bundle"):
        load_bundle(tmp_path / "none.yaml")


def fit(host: float = 40, hbm: float = 64, pinned: int = 1, **sizes: int) -> BundleFit:
    """Return what fits of ten experts of 16 GB, as Llama 3.1 8B has in bf16; memory in GiB."""
    configuration = replace(ConfigurationSizes("4k", 4096, 4, "bf16", 16_000_000_000, 2 * GIB, GIB), **sizes)
    experts = [ExpertSizes(f"e{n}", "4k", configuration.weights_bytes, n < pinned) for n in range(10)]
    device = device_memory(find_chip("sn40l"), 1, int(host * GIB), int(hbm * GIB))
    return legalize(device, [configuration], experts)


def test_what_fits_is_a_sum() -> None:
    found = fit()
    assert not found.problems
    assert (found.fast_experts, found.ddr_experts, found.host_experts) == (4, 10, 2)
    assert found.fast_bytes == 61 * GIB
    # The vendor's slide: 0.01 s for Llama 3.1 8B on a node of 16 sockets, as bytes over DDR's bandwidth.
    assert describe_fit(found)["emulated_switch_s"]["e0"] == pytest.approx(0.16)
    assert json.loads(json.dumps(describe_fit(found)))["fits"] is True
    lines = "\n".join(format_table(table, 80) for table in fit_tables(found)).splitlines()
    assert max(map(len, lines)) <= 80 and any("4 of 10" in line for line in lines)
    assert not any("DRAFT" in line for line in lines)


def test_a_draft_takes_from_what_experts_have() -> None:
    found = fit(draft_bytes=15 * GIB, draft_weights_bytes=9 * GIB)
    assert not found.problems and found.fast_bytes == 46 * GIB and found.host_bytes == 31 * GIB
    assert (found.fast_experts, found.host_experts) == (3, 2)
    lines = "\n".join(format_table(table, 80) for table in fit_tables(found)).splitlines()
    assert max(map(len, lines)) <= 80 and any(line.split()[-1:] == ["DRAFT"] for line in lines)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hbm": 16}, r"memory.hbm is 16 GiB .*; expected 18GiB or more, fewer configurations"),
        ({"host": 20}, r"e1, e2, .* …: 14.9 GiB in addition to 14.9 GiB of pinned experts exceed memory.host"),
        (
            {"draft_bytes": 60 * GIB},
            r"caches, graphs and drafts of 1 configurations take 63 GiB.*expected 78GiB or more",
        ),
        (
            {"draft_weights_bytes": 20 * GIB},
            r"in addition to 34.9 GiB of pinned experts and drafts exceed memory.host",
        ),
        ({"host": 20, "pinned": 2}, r"pinned experts take 29.8 GiB, but memory.host is 20 GiB; expected 30GiB or more"),
    ],
)
def test_what_does_not_fit_is_told_with_what_would(change: dict[str, Any], told: str) -> None:
    (problem,) = fit(**change).problems
    assert re.search(told, problem), problem


def test_of_artifacts_only_artifacts_are_named(tmp_path: Path) -> None:
    file = tmp_path / "bundle.yaml"
    file.write_text(TEXT)
    (tmp_path / "art-1").mkdir()
    (tmp_path / "art-1" / "poet").write_text("x")
    place = ("experts", 0, "checkpoint")
    for files in (load_bundle(file), load_bundle(file, is_of_artifacts=True)):
        assert files.find("artifact://art-1/poet", place) == tmp_path / "art-1" / "poet"
        with pytest.raises(InvalidArgument, match=r"bundle.yaml:8:.*outside of the bundle's folders"):
            files.find("artifact:///etc/passwd", place)
    with pytest.raises(InvalidArgument, match=r"bundle.yaml:8:.*'art-1' is not an artifact; expected artifact://ID"):
        files.find("art-1", place)
    with pytest.raises(NotFound, match=r"'artifact://art-2' does not exist; expected an artifact"):
        files.find("artifact://art-2", place)
    named = {".".join(map(str, path)): text for path, text in files.bundle.files()}
    assert named["experts.1.checkpoint"] == "coder/model.safetensors" and len(named) == 3
