"""Settings of a box that its starter passes to it: the served model, gRPC, and the members of a training."""

from typing import Final

from rdukit.settings import Setting, parse_bool

PEF: Final = Setting("box.pef", "", "PEF that a box serves from its start; also --pef.", str)
CHECKPOINT: Final = Setting("box.checkpoint", "", "Parameters for that PEF; also --checkpoint.", str)
BUNDLE: Final = Setting(
    "box.bundle", "", "Bundle file of experts that a box serves from its start instead of a PEF.", str
)
GRPC: Final = Setting(
    "box.grpc", True, "Whether to also serve gRPC. The platform sets it to false for job boxes.", parse_bool
)
MEMBERS: Final = Setting(
    "box.members", "",
    "Leases of a training's members, as space-separated `<id>:<token>@<socket>`; the platform sets it.", str,
)  # fmt: skip
PART: Final = Setting(
    "box.part", "",
    "Part of this box in a training on several nodes, `PART/PARTS:FIRST-RANK/MEMBERS@SOCKET`; the platform "
    "sets it.", str,
)  # fmt: skip
