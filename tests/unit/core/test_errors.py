"""Errors: one code each, a manual entry each, the same on both sides of a wire."""

import json

import pytest

from rdukit.errors import RdukitError, UnknownTensor, all_error_classes, error_from_body
from support import shows

pytestmark = shows("errors", "wire")

GRPC_STATUSES = {
    "CANCELLED", "INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION", "ABORTED", "UNAVAILABLE", "INTERNAL", "ALREADY_EXISTS", "DEADLINE_EXCEEDED",
}  # fmt: skip


def subclasses(cls: type[RdukitError]) -> list[type[RdukitError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in subclasses(child))]


EVERY_CLASS = [cls for cls in subclasses(RdukitError) if cls.__module__ == "rdukit.errors"]


@pytest.mark.parametrize("cls", EVERY_CLASS, ids=lambda cls: cls.__name__)
def test_an_error_class_has_a_manual_entry_and_legal_statuses(cls: type[RdukitError]) -> None:
    assert cls.__dict__.get("__doc__")
    assert cls.__dict__.get("code"), "a class without a code of its own would hide behind its parent"
    assert 400 <= cls.http_status < 600
    assert 0 < cls.exit_status < 256
    assert cls.grpc_status in GRPC_STATUSES


def test_error_codes_are_unique() -> None:
    codes = [cls.code for cls in EVERY_CLASS]
    assert len(codes) == len(set(codes))
    assert {all_error_classes()[code] for code in codes} == set(EVERY_CLASS)


@pytest.mark.parametrize("cls", EVERY_CLASS, ids=lambda cls: cls.__name__)
def test_an_error_survives_the_wire(cls: type[RdukitError]) -> None:
    error = cls("no tensor is called 'z'", legal=["x", "y"], count=2)
    again = error_from_body(json.loads(json.dumps(error.body("req-1"))))
    assert type(again) is cls
    assert again.message == error.message
    assert again.detail == {"legal": ["x", "y"], "count": 2}


def test_the_error_body_has_the_one_shape() -> None:
    assert UnknownTensor("no 'z'").body("req-7") == {
        "error": {"code": "unknown-tensor", "message": "no 'z'", "detail": {}, "request_id": "req-7"}
    }


@pytest.mark.parametrize("body", [{}, {"detail": "Not Found"}, {"error": "plain text"}, {"error": {"code": "new"}}])
def test_a_foreign_error_body_still_becomes_an_error(body: dict[str, object]) -> None:
    assert isinstance(error_from_body(body, UnknownTensor), UnknownTensor)


def test_a_received_error_may_have_details_of_any_name() -> None:
    body = {"error": {"code": "not-found", "message": "gone", "detail": {"message": "m", "self": 1}}}
    error = error_from_body(body)
    assert (error.message, error.detail) == ("gone", {"message": "m", "self": 1})
