"""A store that asks for the token, found by a store that does not: torchrun's, or that of a program's own group.

Everybody who reaches the open store can read and change it. A changed port leads to a store without the token, which
is refused. Ranks tell each other there whether they have a token and whether theirs was refused, so that all of them
end at once. Source: ours.
"""

from datetime import timedelta
from typing import Final

from rdukit.errors import Unauthenticated
from rdukit_runtime.collectives.membership import name_ranks
from rdukit_runtime.collectives.network import check_sizes, claim_rank, exchange_texts
from rdukit_runtime.collectives.rank_store import RankStore, connect_rank_store, serve_rank_store
from rdukit_runtime.engine.torch_private import PrefixStore, Store
from rdukit_runtime.settings import DISTRIBUTED_TOKEN

#: Seconds in which the store of rank 0, which is served already, must answer.
_PATIENCE_S: Final = 30.0


def open_trusted_store(given: Store, rank: int, size: int, token: str, host: str, waiting: timedelta) -> Store:
    """Return rank 0's store that asks for the token, or a part of ``given`` if no rank has one. All ranks call this.

    Former groups of these processes may have met at ``given``, as under torchrun: each group has a part of its own.

    Args:
        host: of rank 0. waiting: longest wait of the store.
    Raises:
        Unauthenticated: ranks have different tokens, or some have none; all ranks raise it.
        InvalidArgument: ranks have different numbers of ranks, or two processes have this rank.
        RuntimeError: torch's; ranks did not come.
    """
    if asks_for_token(given):
        return given
    claim_rank(given, rank, size)
    turns = f"rdukit/turns/{rank}"
    part = PrefixStore(f"rdukit/turn{given.add(turns, 0)}", given)
    check_sizes(part, rank, size)
    served = serve_rank_store(token, waiting) if token and rank == 0 else None
    told = f"{'with' if token else 'without'} {served.port if served else 0}"
    said = [text.split() for text in exchange_texts(part, "token", rank, size, told)]
    given.add(turns, 1)
    without = [of for of, (word, _) in enumerate(said) if word == "without"]
    if len(without) == size:
        return part
    if without:
        verb = "has" if len(without) == 1 else "have"
        raise Unauthenticated(
            f"{name_ranks(without)} of {size} {verb} no token, and the others have one; expected none or the same on "
            f"all: set ${DISTRIBUTED_TOKEN.variable} to the same value on every rank"
        )
    store, refusal = served, ""
    if store is None:
        try:
            store = connect_rank_store((host, int(said[0][1])), token, waiting, patience_s=_PATIENCE_S)
        except (Unauthenticated, RuntimeError) as error:
            refusal = error.message if isinstance(error, Unauthenticated) else str(error)
    refusals = exchange_texts(part, "refused", rank, size, refusal)
    if refused := [of for of, text in enumerate(refusals) if text]:
        raise Unauthenticated(f"rank 0's store and {name_ranks(refused)} do not agree: {refusals[refused[0]]}")
    assert store is not None, "it was not refused"
    return store


def asks_for_token(store: Store) -> bool:
    """Return whether a store serves only processes with a token."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return isinstance(store, RankStore)
