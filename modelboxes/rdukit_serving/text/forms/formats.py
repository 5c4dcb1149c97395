"""Formats of texts that JSON schemas name, and those that are enforced as expressions. Pure.

Source: RFC 3339 and its appendix A for times and durations; RFC 9562 for UUIDs.
"""

from typing import Final

#: Formats that llguidance enforces; all others are annotations, unless they are in ``FORMAT_PATTERNS``.
KEPT_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
_HEX: Final = "[0-9a-fA-F]"
_UUID: Final = f"{_HEX}{{8}}-{_HEX}{{4}}-%s{_HEX}{{3}}-%s{_HEX}{{3}}-{_HEX}{{12}}"
#: Days of the years 1000 to 9999, which Python, JavaScript and databases read.
_DAY: Final = (
    "(?:[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[1-9][0-9](?:[2468][048]|[13579][26]|0[48])|(?:[2468][048]|[13579][26])00)-02-29)"
)
#: Times without leap seconds, which clocks of computers lack, and with "T" and "Z" in capitals.
_CLOCK: Final = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_PART: Final = "[0-9]{1,4}"
#: Durations whose sum fits into 32 bits of days.
_TIMES: Final = f"T(?:{_PART}H(?:{_PART}M(?:{_PART}S)?)?|{_PART}M(?:{_PART}S)?|{_PART}S)"
_DATES: Final = f"(?:{_PART}Y(?:{_PART}M(?:{_PART}D)?)?|{_PART}M(?:{_PART}D)?|{_PART}D)(?:{_TIMES})?"
#: Format → expression of its texts.
FORMAT_PATTERNS: Final = {
    **{f"uuid{version}": f"^{_UUID % (version, '[89abAB]')}$" for version in range(1, 9)},
    "date-time": f"^{_DAY}T{_CLOCK}$", "date": f"^{_DAY}$", "time": f"^{_CLOCK}$",
    "duration": f"^P(?:{_DATES}|{_TIMES}|{_PART}W)$",
}  # fmt: skip
#: The same for names of a dict's keys.
NAME_PATTERNS: Final = {**FORMAT_PATTERNS, "uuid": f"^{_UUID % (_HEX, _HEX)}$"}
