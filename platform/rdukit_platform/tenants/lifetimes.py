"""How long tokens live (pure). Times are seconds since the epoch; no end is ``None``."""

from typing import Final

from rdukit.errors import InvalidArgument, PermissionDenied

DAY_S: Final = 86400.0


def choose_end(now: float, asked_s: float | None, makers_end: float | None, most_s: float) -> float | None:
    """When a new token ends: as asked, else with its maker and within the longest life that there is.

    ``makers_end``: what it may not outlive. ``most_s``: the longest life; 0: there is none.

    Raises:
        InvalidArgument: it was asked to live longer than tokens may.
        PermissionDenied: it was asked to outlive its maker.
    """
    if asked_s is None:
        ends = [end for end in (makers_end, now + most_s if most_s else None) if end is not None]
        return min(ends) if ends else None
    if asked_s <= 0 or (most_s and asked_s > most_s):
        legal = f"up to {most_s:.0f} (token.max_days)" if most_s else "more than 0"
        raise InvalidArgument(f"a token was asked to live {asked_s:g} s; legal: {legal}")
    if makers_end is not None and now + asked_s > makers_end:
        left = max(makers_end - now, 0.0)
        raise PermissionDenied(f"this token ends in {left:.0f} s, and what it makes ends no later; ask for less")
    return now + asked_s


def choose_next_end(now: float, created_at: float, expires_at: float | None, most_s: float) -> float | None:
    """When the token ends that replaces one: it gets the same life again, but no longer one than there is."""
    lives = [life for life in (expires_at and expires_at - created_at, most_s) if life]
    return now + min(lives) if lives else None


def end_of_old(now: float, expires_at: float | None, grace_s: float) -> float:
    """When a token ends that was replaced."""
    return now + grace_s if expires_at is None else min(expires_at, now + grace_s)


def is_over(now: float, revoked_at: float | None, expires_at: float | None) -> str:
    """Why a token is not valid any more; empty: it is."""
    if revoked_at is not None:
        return "was revoked"
    return "has expired" if expires_at is not None and expires_at <= now else ""
