"""A version is replaced by one with native kernels only while it answers."""

import asyncio
from pathlib import Path

import pytest

from rdukit.errors import Unavailable
from rdukit_serving.device.client import ModelFiles
from rdukit_serving.models.repository import Repository
from rdukit_serving.models.version import ModelVersion
from support import shows

pytestmark = shows("huggingface")


def test_a_version_that_no_longer_answers_is_not_loaded_again(tmp_path: Path) -> None:
    async def replace() -> None:
        repository = Repository("m", {}, tmp_path)
        former = ModelVersion("1", ModelFiles("m", tmp_path / "m.pef", None, {}), tmp_path / "log")
        with pytest.raises(Unavailable, match="version 1 no longer answers, so it is not replaced"):
            await repository.load(tmp_path / "native.pef", None, "1", replaces=former)
        assert not repository.versions and repository.current is None

    asyncio.run(replace())
