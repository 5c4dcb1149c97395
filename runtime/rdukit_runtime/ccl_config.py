"""The database of the node's topology that collectives read: a small SQLite file, made once from the platform.

Source: runtime reference 8.1 (its place; that it is a database of topology and configuration). Its tables are ours.
"""

import json
import sqlite3
from contextlib import closing
from typing import Final

from rdukit.hardware import NodeSpec
from rdukit_runtime.inventory import ComponentKind, components, inventory_rows
from rdukit_runtime.snml.routes import routes

SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE rdu (
    id INTEGER PRIMARY KEY, comp_name TEXT NOT NULL UNIQUE, xrdu INTEGER NOT NULL, tiles INTEGER NOT NULL,
    ddr_bytes INTEGER NOT NULL, pcie_links INTEGER NOT NULL
) STRICT;
CREATE TABLE route (
    source INTEGER NOT NULL REFERENCES rdu (id), destination INTEGER NOT NULL REFERENCES rdu (id),
    path TEXT NOT NULL, is_local INTEGER NOT NULL, bytes_per_second REAL NOT NULL,
    PRIMARY KEY (source, destination)
) STRICT;
"""


def ccl_config(node: NodeSpec, name: str = "node") -> bytes:
    """The file's content: RDUs, and the routes between each two of them as long as all links are up.

    ``route.path`` is a JSON list of component names; ``is_local`` says that both RDUs are on one XRDU.
    """
    rdus = {c.path: c.rdu for c in components(node) if c.kind is ComponentKind.RDU and c.rdu is not None}
    found = routes(inventory_rows(node, name), only_local=False)
    chip = node.chip
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(_SCHEMA)
        database.executemany(
            "INSERT INTO meta VALUES (?, ?)",
            [("platform", node.platform), ("schema_version", str(SCHEMA_VERSION)), ("is_emulated", "1")],
        )
        database.executemany(
            "INSERT INTO rdu VALUES (?, ?, ?, ?, ?, ?)",
            [(r, p, r // node.rdus_per_xrdu, chip.tiles, chip.ddr_bytes, chip.pcie_links) for p, r in rdus.items()],
        )
        database.executemany(
            "INSERT INTO route VALUES (?, ?, ?, ?, ?)",
            [
                (
                    rdus[route.source],
                    rdus[route.destination],
                    json.dumps(list(route.expected)),
                    int(rdus[route.source] // node.rdus_per_xrdu == rdus[route.destination] // node.rdus_per_xrdu),
                    chip.pcie_bandwidth,
                )
                for route in found
            ],
        )
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        database.commit()
        return database.serialize()
