"""The SambaFlow programming interface, emulated.

Names and places are the vendor's, so that programs written for it run unmodified; everything behind them is rdukit's.
"""

from rdukit.system.process import gc_paused

with gc_paused():
    from sambaflow import samba

#: Programs compare this with the SambaFlow releases that they need; rdukit emulates the interface of this one.
__version__ = "1.23.0"
#: rdukit is no demonstration build.
is_demo = False

__all__ = ["__version__", "is_demo", "samba"]
