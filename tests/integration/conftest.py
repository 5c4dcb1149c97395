"""The fixture of modules that compile and are about something else than kernels."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def portable_kernels() -> Iterator[None]:
    """Kernels that need no compiler, before anything else of the module: native ones would only be built once more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_KERNELS", "portable")
        yield
