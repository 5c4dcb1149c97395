"""Python's collector of cycles, kept from looking through everything in the midst of something short.

Beside torch there are a million objects, and a collection of all of them takes 80 ms. It comes when many new ones have
been kept, which an import and a trace do, and finds nothing there.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """While it lasts nothing is collected, by any thread; afterwards it is as before. Also a decorator."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
