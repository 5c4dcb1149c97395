"""Artifacts by URI: fetched into a cache by content, checked, unpacked within limits, and uploaded."""
