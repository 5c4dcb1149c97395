"""Losses: torch's functions on SambaTensors, under the vendor's module name. Source: SDK reference 3."""

from typing import Any

from sambaflow.samba.functional import torch_function


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return torch_function(name)
