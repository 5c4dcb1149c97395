"""Numeric limits. Source: SDK reference 3."""

#: Largest relative error when a normal f32 number is truncated to bf16's 8 significant bits.
MAX_BF16_TRUNCATE_NORMAL_REL = 2.0**-7
#: The same when it is rounded to nearest.
MAX_BF16_ROUND_NORMAL_REL = 2.0**-8
