"""Every test gets a state folder of the session, an empty session and a seed; kernels are portable unless asked."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sambaflow import samba
from sambaflow.samba import utils


@pytest.fixture(scope="session")
def rdukit_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for the whole session, or for all parts of ``make test``, so that native kernels are built once."""
    shared = os.environ.get("RDUKIT_TEST_HOME")
    return Path(shared) if shared else tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module", autouse=True)
def home_of_the_session(rdukit_home: Path) -> Iterator[None]:
    """Fixtures of modules have it, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_HOME", str(rdukit_home))
        yield


@pytest.fixture(autouse=True)
def fresh_session(rdukit_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings of the machine, nothing traced, a folder of its own as working directory, seed 0."""
    monkeypatch.setenv("RDUKIT_HOME", str(rdukit_home))
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_NODE", "private")
    monkeypatch.setenv("RDUKIT_CHECK", "1")
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    samba.session.reset()
    samba.session.options = {}
    utils.set_seed(0)
    warnings.filterwarnings("ignore", message=".*not writable.*")
    yield
    samba.session.reset()
    samba.session.options = {}
    torch.set_num_threads(threads)
