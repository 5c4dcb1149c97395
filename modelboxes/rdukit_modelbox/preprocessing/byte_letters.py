"""The letter that stands for each byte in byte-level vocabularies."""


def byte_letters() -> list[str]:
    """Letter of each byte, as GPT-2 chose them: printable bytes stand for themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]
