"""The SambaFlow programming interface, emulated.

Names and modules are the vendor's, so that programs written for SambaFlow run unmodified; the code is rdukit's.
"""

from rdukit.system.process import gc_paused

with gc_paused():
    from sambaflow import samba
    from sambaflow.samba.utils.pef_utils import SAMBAFLOW_VERSION as __version__

#: The vendor's flag of demonstration builds, which rdukit is not.
is_demo = False

__all__ = ["__version__", "is_demo", "samba"]
