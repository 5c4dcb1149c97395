"""``rdukit doctor``: checks an installation against the manual. Parts add checks by entry points."""
