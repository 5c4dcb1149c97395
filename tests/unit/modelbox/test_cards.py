"""Model cards: one for each box that comes with rdukit, with the numbers of its model."""

import re
from pathlib import Path
from shutil import copytree
from xml.etree import ElementTree

import pytest
import torch
from click.testing import CliRunner

from rdukit_modelbox.cli.contract import describe
from rdukit_modelbox.contract.box import BOXES_FOLDER, Verb, box_names, find_box_file, load_box
from rdukit_modelbox.contract.cards import card_of, load_cards
from rdukit_modelbox.contract.check_parameters import check_parameters
from rdukit_modelbox.contract.models import chosen_sizes, entry_of
from rdukit_zoo.cli import show_model
from rdukit_zoo.pictures import load_pictures
from support import shows

pytestmark = shows("cards", "box", "zoo", "every box")

#: Bytes of a picture, and of all.
MAX_PICTURE, MAX_PICTURES = 32 << 10, 1 << 20


def test_every_box_has_a_card() -> None:
    assert tuple(load_cards()) == box_names()


@pytest.mark.parametrize("name", box_names())
def test_a_card_has_the_numbers_of_its_model(name: str) -> None:
    box = load_box(find_box_file(name))
    card, entry = card_of(box), entry_of(box)
    assert card is not None
    sizes = chosen_sizes(box, entry, check_parameters(box, Verb.COMPILE, {}))
    with torch.device("meta"):
        model = entry.build(**sizes)
    published = {key: value.parameters for key, value in entry.variants.items()}
    assert card["parameters"] == {"default": sum(p.numel() for p in model.parameters()), **published}
    assert (card["task"], card["source"], card["licence"]) == (entry.task, entry.source, entry.licence)
    assert set(card["projected"]) == {"sn10", "sn30", "sn40l"}
    assert all(figures["step_seconds"] > 0 for figures in card["projected"].values())


def test_describe_prints_the_card_and_a_box_of_ones_own_has_none(tmp_path: Path) -> None:
    shown = CliRunner().invoke(describe, ["braggnn"]).output
    for words in (
        "parameters: default 33,172",
        "sn40l, emulated (projected): a training step of",
        "measured on held-out data: ",
    ):
        assert words in shown, shown[:800]
    copytree(BOXES_FOLDER / "braggnn", tmp_path / "braggnn")
    assert card_of(load_box(tmp_path / "braggnn" / "modelbox.yaml")) is None
    assert "braggnn.svg\nDiffraction peaks" in shown
    assert "emulated (projected)" not in CliRunner().invoke(describe, [str(tmp_path / "braggnn")]).output


def test_every_box_has_a_picture_that_is_small_and_whole_and_runs_and_loads_nothing() -> None:
    pictures = load_pictures()
    assert set(pictures) == set(box_names())
    assert sum(picture.file.stat().st_size for picture in pictures.values()) < MAX_PICTURES
    for box, picture in pictures.items():
        assert picture.model == load_box(find_box_file(box)).model
        assert picture.file.stat().st_size < MAX_PICTURE, box
        root = ElementTree.parse(picture.file).getroot()
        names = {element.tag.removeprefix("{http://www.w3.org/2000/svg}") for element in root.iter()}
        assert names <= {"svg", "title", "style", "rect", "text", "line", "path", "circle", "image"}, box
        links = [value for element in root.iter() for key, value in element.attrib.items() if "href" in key]
        assert all(link.startswith("data:image/png;base64,") for link in links), box
        assert "url(" not in picture.file.read_text() and root[0].text, box
        assert re.search(r"rained for [\d,]+ steps in [\d.]+ s of one core \(.*\)\. Data: .+\.$", picture.caption), box
        assert picture.alt in picture.caption, box


def test_the_zoo_names_the_pictures_of_a_model() -> None:
    shown = CliRunner().invoke(show_model, ["braggnn", "--json"]).output
    assert str(load_pictures()["braggnn"].file) in shown
