"""Names for new rows: a word for the kind, then 60 random bits; sorting them means nothing."""

import secrets
from typing import Final

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(kind: str) -> str:
    """``job-7k2m…``; 12 characters of Crockford's base 32 after the kind."""
    return f"{kind}-" + "".join(secrets.choice(_ALPHABET) for _ in range(12))
