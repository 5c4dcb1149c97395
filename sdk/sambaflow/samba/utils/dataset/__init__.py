"""Helpers for data sets."""

from sambaflow.samba.utils.dataset import mnist

__all__ = ["mnist"]
