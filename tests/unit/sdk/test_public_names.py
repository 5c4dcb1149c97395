"""Names that public programs import, or read of what they imported, resolve where the programs look for them."""

import importlib
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from rdukit.errors import InvalidArgument
from sambaflow import samba
from sambaflow.samba import sambatensor, utils
from support import shows

pytestmark = shows("surface")

LISTED = yaml.safe_load((Path(__file__).parents[3] / "docs" / "surface.yaml").read_text())["programs"]
IMPORTS, ATTRIBUTES = LISTED["imports"].split(), LISTED["attributes"].split()


def imported(name: str) -> Any:
    """What ``from module import name`` binds, or ``import module`` for a module."""
    module, _, last = name.rpartition(".")
    if not module:
        return importlib.import_module(name)
    bound: dict[str, Any] = {}
    exec(f"from {module} import {last} as it", bound)
    return bound["it"]


def test_the_lists_hold_what_the_vendor_s_and_other_public_programs_use() -> None:
    assert len(IMPORTS) >= 57 and len(ATTRIBUTES) >= 73
    assert len(set(IMPORTS)) == len(IMPORTS) and len(set(ATTRIBUTES)) == len(ATTRIBUTES)


@pytest.mark.parametrize("name", IMPORTS)
def test_an_import_of_public_programs_binds_something(name: str) -> None:
    assert imported(name) is not None or name.endswith("is_demo")


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_that_public_programs_read_is_there(name: str) -> None:
    first, second, *rest = name.split(".")
    found = reduce(getattr, rest, getattr(importlib.import_module(first), second))
    assert callable(found) or isinstance(found, ModuleType | dict | bool | torch.dtype) or found is not None


def test_a_name_that_is_not_there_fails_the_test() -> None:
    with pytest.raises(ImportError):
        imported("sambaflow.samba.sambatensor.from_torch_model_s")
    with pytest.raises(AttributeError):
        reduce(getattr, ("samba", "session", "no_such_member"), importlib.import_module("sambaflow"))


def test_both_places_of_a_name_hold_one_object() -> None:
    assert sambatensor.from_torch_tensor is samba.from_torch_tensor is samba.from_torch
    tensor = sambatensor.from_torch_tensor(torch.ones(2), name="x", batch_dim=0)
    assert isinstance(tensor, samba.SambaTensor) and (tensor.sn_name, tensor.batch_dim) == ("x", 0)


def test_a_dtype_is_read_from_its_name() -> None:
    for name in ("bfloat16", "torch.bfloat16", "bf16", "BF16", torch.bfloat16, utils.SNType.BF16):
        assert utils.parse_dtype(name) is torch.bfloat16
    assert utils.parse_dtype("fp32") is utils.parse_dtype("float32") is torch.float32
    with pytest.raises(InvalidArgument, match="unknown dtype 'nn'"):
        utils.parse_dtype("nn")
