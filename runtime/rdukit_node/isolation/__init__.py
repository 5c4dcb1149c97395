"""Isolation of applications on the host, as far as the machine allows, and a report of the applied measures.

An application's process isolates itself when it opens a lease of the daemon (``apply``). The daemon adds control groups
where permitted (``CgroupGuard``). ``docs/isolation.md`` describes what that protects against.
"""

from rdukit_node.isolation.cgroup import CgroupGuard
from rdukit_node.isolation.process import apply
from rdukit_node.settings import ISOLATION_SETTINGS

__all__ = ["ISOLATION_SETTINGS", "CgroupGuard", "apply"]
