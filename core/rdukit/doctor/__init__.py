"""``rdukit doctor``: whether an installation is as the manual says it should be. Parts add checks by entry points."""
