"""``rdukit box build`` and ``push`` as a user meets them."""

import json
import platform
from pathlib import Path

import pytest
from click.testing import CliRunner

from rdukit.errors import InvalidArgument
from rdukit_modelbox.cli.main import box
from rdukit_modelbox.image.config import empty_config
from rdukit_modelbox.image.layout import ImageLayout, manifest_blob
from rdukit_modelbox.image.media import CONFIG_TYPE, MANIFEST_TYPE, compact_json, machine_name
from support import shows

pytestmark = shows("box", "images", "logreg")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A layout with an image without layers."""
    layout = ImageLayout.create(tmp_path / "base")
    config = layout.add_blob(CONFIG_TYPE, compact_json(empty_config(machine_name(platform.machine()), "/bin", False)))
    layout.set_reference("base", layout.add_blob(MANIFEST_TYPE, manifest_blob(config, [], {})), {})
    return tmp_path / "base"


def test_a_layout_is_built_and_copied(base: Path, tmp_path: Path) -> None:
    output = ["--output", str(tmp_path / "images"), "--base", f"oci:{base}:base", "--json"]
    built = CliRunner().invoke(box, ["build", "logreg", *output], catch_exceptions=False)
    told = json.loads(built.output)
    assert (told["box"], told["reference"], told["layers"]) == ("logreg", "logreg", 1)
    to = f"oci:{tmp_path / 'other'}:mine"
    pushed = CliRunner().invoke(box, ["push", str(tmp_path / "images"), to, "--json"], catch_exceptions=False)
    assert json.loads(pushed.output) == {"target": to, "digest": told["digest"], "sent": 3, "known": 0}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engine", "none"], "--output FOLDER"),
        (["--engine", "docker", "--output", "x"], "with --engine docker use --tag"),
        (["--output", "x", "--base", "debian:12"], "expected 'installed'"),
    ],
)
def test_what_cannot_be_built_is_told(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(box, ["build", "logreg", *arguments])
    assert isinstance(result.exception, InvalidArgument) and words in result.exception.message
    assert not list(tmp_path.iterdir())
