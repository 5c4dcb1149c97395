"""The catalogue says everything about every class, and its policies can be changed within what is legal."""

import json
import random
from dataclasses import replace

import pytest

from rdukit.errors import InvalidArgument, all_error_classes
from rdukit.hardware import find_node
from rdukit_node.faults.catalogue import (
    PARTS,
    catalogue_rows,
    check_policy,
    class_by_error_type,
    default_policies,
    fault_classes,
    fault_types,
    find_class,
)
from rdukit_node.faults.enums import Action, FaultSeverity
from rdukit_node.faults.register import LEGAL_KINDS, FaultClass, fault
from support import shows

pytestmark = shows("faults")

NODE = find_node("SN30-8")


@pytest.mark.parametrize("entry", fault_classes().values(), ids=lambda entry: entry.name)
def test_a_class_has_every_text_and_draws_the_same_data_for_the_same_seed(entry: FaultClass) -> None:
    for text in (entry.error_desc, entry.cause, entry.signs, entry.effect, entry.suggestion):
        assert text and not text.startswith(" "), entry.name
    assert entry.error_type.startswith("ETYPE_") and entry.part in PARTS
    assert entry.fault_type.startswith("FTYPE_") == bool(entry.fault_desc)
    data = entry.sample(random.Random(3), NODE)
    assert json.loads(json.dumps(data)) == data == entry.sample(random.Random(3), NODE)
    assert (entry.sample.__doc__ or "").endswith(".")


def test_exceptions_of_uncorrectable_classes_exist_and_are_hardware_errors() -> None:
    codes = {entry.exception_code for entry in fault_classes().values() if entry.is_uncorrectable}
    assert codes == {
        "dram-uncorrectable", "scratchpad-uncorrectable", "d2d-uncorrectable", "tile-fault", "hardware-error"
    }  # fmt: skip
    hardware = all_error_classes()["hardware-error"]
    assert all(issubclass(all_error_classes()[code], hardware) for code in codes)


def test_the_vendors_names_are_there_and_the_old_ones_are_not() -> None:
    assert {"FTYPE_TILE_EXCLUDED", "FTYPE_RDU_INIT", "FTYPE_RDU_RESET", "FTYPE_RDU_REMOVED"} <= set(fault_types())
    assert not {"FTYPE_BAD_TILE", "FTYPE_BAD_RDU"} & set(fault_types())


def test_a_row_of_the_catalogue_has_the_contracts_fields() -> None:
    fields = (
        "name error_type part component_kind cause signs severity effect suggestion action is_uncorrectable persists"
    )
    assert all(list(row) == fields.split() for row in catalogue_rows())
    assert len(class_by_error_type()) == len(fault_classes())


def test_classes_about_paths_have_ordered_suspects() -> None:
    assert all(entry.suspects for entry in fault_classes().values() if entry.part == "pcie")


def test_an_unknown_class_is_refused_with_the_legal_names() -> None:
    with pytest.raises(InvalidArgument, match=r"'tile-melt'; expected ddr-correctable, "):
        find_class("tile-melt")


def test_a_second_class_of_a_name_is_refused() -> None:
    texts = dict.fromkeys(("error_desc", "cause", "signs", "effect", "suggestion", "part"), "x")
    kind = find_class("fan").kind
    with pytest.raises(ValueError, match="two fault classes"):
        fault("fan", kind=kind, error_type="ETYPE_OTHER", **texts)(find_class("fan").sample)
    with pytest.raises(ValueError, match="not for a XRDU"):
        fault("fan2", kind=kind, error_type="ETYPE_OTHER", action=Action.RESET_TILE, **texts)(find_class("fan").sample)


def test_every_default_policy_is_a_legal_one() -> None:
    for policy in default_policies().values():
        if not class_by_error_type()[policy.error_type].is_command:
            assert check_policy(policy) == policy
    assert set(LEGAL_KINDS) == set(Action)


@pytest.mark.parametrize(
    ("change", "legal"),
    [
        ({"error_type": "ETYPE_X"}, "expected ETYPE_DDR_CE, "),
        ({"fault_type": "FTYPE_X"}, "expected FTYPE_D2D_CE_RATE, "),
        ({"count": 0}, "expected 1 to "),
        ({"count": True}, "expected 1 to "),
        ({"window_s": 0}, "expected 1 to "),
        ({"action": Action.EXCLUDE_TILE}, "expected for a DIMM: none, retire-channel, reset-rdu, retire-rdu"),
        ({"error_type": "ETYPE_CHIP_RESET"}, "cannot be changed"),
    ],
)
def test_a_policy_that_is_not_legal_is_refused(change: dict[str, object], legal: str) -> None:
    policy = replace(default_policies()["ETYPE_DDR_CE"], severity=FaultSeverity.MAJOR)
    with pytest.raises(InvalidArgument, match=legal):
        check_policy(replace(policy, **change))  # type: ignore[arg-type]
