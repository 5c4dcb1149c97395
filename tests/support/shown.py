"""What a test file shows: the line that the table of features, ``docs/design/tests.md``, is made from."""

import pytest


def shows(*features: str) -> pytest.MarkDecorator:
    """Return the mark of a file that shows features, as ``scripts/suite/features.py`` names them.

    They are written out, as strings: the file is read as text. ``pytestmark = shows("pipelines", "sweep")``.
    ``"every box"`` stands for all boxes that there are.
    """
    return pytest.mark.shows(*features)
