"""SambaConfig: a program's arguments laid over a schema. Source: SDK reference 8."""

import argparse
from typing import Any

from sambaflow.samba.schema.snconfig import SNConfig


class SambaConfig:
    """Arguments with a schema's defaults below them."""

    def __init__(self, args: argparse.Namespace, schema: type[SNConfig] | None = None) -> None:
        self.args = args
        self.schema = schema or SNConfig

    def get_all_params(self) -> dict[str, Any]:
        """All parameters; those that ``args`` lacked are set there, and the session remembers them."""
        from sambaflow import samba

        for name, value in self.schema.defaults().items():
            if not hasattr(self.args, name):
                setattr(self.args, name, value)
        found = dict(vars(self.args))
        samba.session.options = {**samba.session.options, **found}
        return found
