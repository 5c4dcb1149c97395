"""The SambaFlow programming interface, emulated.

Names and places are the vendor's, so that programs written for it run unmodified; everything behind them is rdukit's.
"""

from rdukit.system.process import gc_paused

with gc_paused():
    from sambaflow import samba
    from sambaflow.samba.utils.pef_utils import SAMBAFLOW_VERSION as __version__

#: rdukit is no demonstration build.
is_demo = False

__all__ = ["__version__", "is_demo", "samba"]
