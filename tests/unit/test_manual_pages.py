"""Pages of the manual: their length, and the references of metrics and gRPC, generated from what they describe."""

import re
from typing import Final

import pytest
from google.protobuf.descriptor import Descriptor, FileDescriptor

from manual import contents, grpc_page, metrics_page
from rdukit.proto import inference_pb2, jobs_pb2, modelbox_pb2, snml_pb2
from rdukit_platform.gateway.metrics import METRICS
from support import shows
from support.pages import read_page

pytestmark = shows("grpc", "metrics", "project")

#: Most words of a page that is read from its beginning to its end.
MOST_WORDS: Final = 1500
#: Groups whose pages are tables to look things up in, most of them generated, or designs.
LOOKED_UP: Final = ("Reference", "Measurements", "Work on rdukit")
PROTOS: Final = {"jobs": jobs_pb2, "modelbox": modelbox_pb2, "inference": inference_pb2, "snml": snml_pb2}


def test_pages_outside_the_reference_are_short() -> None:
    groups = contents.read_groups((contents.TREE / contents.INDEX).read_text())
    pages = [page.source for group in groups for page in group.pages if group.title not in LOOKED_UP]
    words = {page: len((contents.TREE / page).read_text().split()) for page in pages if page.startswith("docs/")}
    assert len(words) > 80
    assert {page: count for page, count in words.items() if count > MOST_WORDS} == {}


def test_every_metric_of_the_platform_is_in_the_manual() -> None:
    page = read_page("metrics.md")
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        assert f"| `{metric.name}` | {labels} | {metric.help} |" in page


def test_metrics_of_boxes_have_names_as_they_are_scraped() -> None:
    rows = {name: labels for name, labels, _ in metrics_page.box_rows()}
    assert rows["rdukit_box_operations_total"] == ("box", "verb", "state")
    assert rows["nv_inference_count"] == ("model", "version")
    assert rows["rdukit_box_expert_loads_total"] == ("model",)


@pytest.mark.parametrize("name", PROTOS)
def test_the_reference_of_grpc_has_every_method_message_and_field(name: str) -> None:
    descriptor: FileDescriptor = PROTOS[name].DESCRIPTOR
    text = (contents.TREE / f"core/rdukit/proto/{name}.proto").read_text()
    blocks = {block.name: block for block in grpc_page.read_blocks(text)}
    expected = {
        service.name: [method.name for method in service.methods]
        for service in descriptor.services_by_name.values()
    }  # fmt: skip
    expected |= {enum.name: [value.name for value in enum.values] for enum in descriptor.enum_types_by_name.values()}
    for message in descriptor.message_types_by_name.values():
        expected |= fields_of(message)
    found = {
        block.name: [next(filter(re.compile("`").match, row)).strip("`") for row in block.rows]
        for block in blocks.values()
    }
    assert {key: sorted(names) for key, names in found.items()} == {key: sorted(v) for key, v in expected.items()}


def fields_of(message: Descriptor, outer: str = "") -> dict[str, list[str]]:
    """Return the fields of a message and of those in it, by name; entries of maps are left out."""
    name = f"{outer}.{message.name}" if outer else message.name
    found = {name: [field.name for field in message.fields]}
    for enum in message.enum_types:
        found[f"{name}.{enum.name}"] = [value.name for value in enum.values]
    for inner in message.nested_types:
        if not inner.GetOptions().map_entry:
            found |= fields_of(inner, name)
    return found


def test_a_comment_belongs_to_what_follows_it() -> None:
    text = """syntax = "proto3";

package a.b;

// -- section
message A {
  // First.
  optional int32 x = 1;  // Second.
  oneof which {
    string y = 2;
  }
  reserved 9;
}
"""
    (block,) = grpc_page.read_blocks(text)
    assert (block.kind, block.comment) == ("message", "")
    assert block.rows == [("1", "`x`", "`optional int32`", "First. Second."), ("2", "`y`", "`string`", "")]
