"""``torch.nn`` under the vendor's name, and SambaParameter."""

from torch.nn import *  # noqa: F403
from torch.nn import functional, init, modules, utils

from sambaflow.samba.nn import parameter  # type: ignore[no-redef]
from sambaflow.samba.nn.parameter import SambaParameter

__all__ = ["SambaParameter", "functional", "init", "modules", "parameter", "utils"]
