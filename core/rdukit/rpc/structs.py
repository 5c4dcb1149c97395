"""Plain values to and from ``google.protobuf.Struct`` (pure)."""

from collections.abc import Mapping

from google.protobuf.struct_pb2 import Struct, Value


def to_struct(values: Mapping[str, object]) -> Struct:
    """JSON-able values as a ``Struct``; all numbers become doubles."""
    struct = Struct()
    struct.update(values)
    return struct


def from_struct(struct: Struct) -> dict[str, object]:
    """Plain values; numbers without a fraction are ints, all others floats, also those that JSON does not have."""
    return {name: _plain(value) for name, value in struct.fields.items()}


def _plain(value: Value) -> object:
    match value.WhichOneof("kind"):
        case "number_value":
            number = value.number_value
            # Doubles above may stand for more than one int.
            return int(number) if number.is_integer() and abs(number) < 1 << 53 else number
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return from_struct(value.struct_value)
        case "list_value":
            return [_plain(item) for item in value.list_value.values]
    return None
