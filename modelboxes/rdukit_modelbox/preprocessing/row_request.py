"""What a request to preprocess rows asks for."""

from collections.abc import Mapping
from dataclasses import dataclass

from rdukit.errors import IllegalValue
from rdukit_modelbox.legal import ParameterValue


@dataclass(frozen=True, slots=True)
class RowPreprocessRequest:
    """The verb's parameters by their names; a box need not have all of them."""

    #: Columns of tables, or the array, that are features; empty is all but the label.
    columns: tuple[str, ...] = ()
    label_column: str = "label"
    #: Columns whose values are names.
    categorical: tuple[str, ...] = ()
    #: ``one_hot`` or ``ordinal``.
    encoding: str = "one_hot"
    #: ``error``, ``drop``, ``zero`` or ``mean``.
    missing: str = "error"
    #: ``mnist`` and ``none`` take grey values 0..255 to 0..1, ``mnist`` then by its usual mean and deviation;
    #: ``standard`` and ``min_max`` go by the training rows; ``as_is`` changes nothing.
    normalize: str = "as_is"
    test_ratio: float = 0.2
    #: None keeps the order.
    seed: int | None = None
    skips_bad_rows: bool = False
    #: Most rows of each split, from the start; 0 keeps all.
    limit: int = 0
    #: Side of the square that images are made; 0 leaves them, if they are all of one size.
    image_size: int = 28
    #: ``grey`` or ``rgb``.
    image_mode: str = "grey"

    @classmethod
    def of(cls, parameters: Mapping[str, ParameterValue]) -> "RowPreprocessRequest":
        """From checked parameters.

        Raises:
            IllegalValue: the label is also a feature, or a categorical column is not one.
        """
        base = cls()
        request = cls(
            columns=_names(parameters.get("columns", "")),
            label_column=str(parameters.get("label_column", base.label_column)),
            categorical=_names(parameters.get("categorical", "")),
            encoding=str(parameters.get("encoding", base.encoding)),
            missing=str(parameters.get("missing", base.missing)),
            normalize=str(parameters.get("normalize", base.normalize)),
            test_ratio=float(parameters.get("test_ratio", base.test_ratio)),
            seed=int(parameters.get("seed", 0)) if parameters.get("shuffle", False) not in {False, "False"} else None,
            skips_bad_rows=parameters.get("bad_rows", "error") == "skip",
            limit=int(parameters.get("limit", 0)),
            image_size=int(parameters.get("image_size", base.image_size)),
            image_mode=str(parameters.get("image_mode", base.image_mode)),
        )
        if request.label_column in (*request.columns, *request.categorical):
            raise IllegalValue(f"label_column {request.label_column!r} is also a feature; legal: another column")
        if request.columns and (extra := set(request.categorical) - set(request.columns)):
            raise IllegalValue(
                f"categorical names {sorted(extra)}, not in columns; legal: {', '.join(request.columns)}"
            )
        return request


def _names(value: ParameterValue) -> tuple[str, ...]:
    return tuple(name.strip() for name in str(value).split(",") if name.strip())
