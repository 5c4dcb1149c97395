"""Keeping applications apart on the host, as far as the machine allows, and saying what was applied.

An application's process isolates itself when it opens a lease of the daemon (``apply``); the daemon adds control groups
where it may (``CgroupGuard``). Read ``docs/isolation.md`` for what that protects against and what not.
"""

from rdukit_node.isolation.cgroup import CgroupGuard
from rdukit_node.isolation.process import apply
from rdukit_node.settings import ISOLATION_SETTINGS

__all__ = ["ISOLATION_SETTINGS", "CgroupGuard", "apply"]
