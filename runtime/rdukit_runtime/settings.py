"""Settings of programs that run: numbers, ranks, devices, threads."""

from typing import Final

from rdukit.settings import Setting, parse_bool, parse_token

NUMERICS_TRAP: Final = Setting(
    "numerics.trap", False, "Raise NumericalException when a run computes NaN or infinite outputs.", parse_bool
)
DISTRIBUTED_TIMEOUT_S: Final = Setting(
    "distributed.timeout_s", 1800.0, "Seconds that a rank waits for the others in a collective; if unset, the "
                                     "vendor's variable `CCL_TIMEOUT`.", float, also="CCL_TIMEOUT",
)  # fmt: skip
AUTO, GLOO = "auto", "gloo"


def read_transport(text: str) -> str:
    """Parse a transport: ``auto``, ``gloo``, or the vendor's 1 and 0.

    Raises:
        ValueError: the text is not valid.
    """
    found = {"auto": AUTO, "1": AUTO, "gloo": GLOO, "0": GLOO}.get(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is not a transport; expected auto (1), gloo (0)")
    return found


DISTRIBUTED_TRANSPORT: Final = Setting(
    "distributed.transport", AUTO, "Transport between ranks: auto (shared memory if all are on one machine, else "
                                   "gloo) or gloo; if unset, the vendor's variable `SAMBA_CCL_USE_PCIE_TRANSPORT` (1 "
                                   "or 0).",
    read_transport, also="SAMBA_CCL_USE_PCIE_TRANSPORT",
)  # fmt: skip
DISTRIBUTED_OVERLAP: Final = Setting(
    "distributed.overlap", True, "Whether ranks average gradients while backward computes the next ones; if unset, "
                                 "the vendor's variable `SAMBA_CCL_ASYNC_ALLREDUCE` (1 or 0).", parse_bool,
    also="SAMBA_CCL_ASYNC_ALLREDUCE",
)  # fmt: skip
DISTRIBUTED_GROUP_BYTES: Final = Setting(
    "distributed.group_bytes", 0, "Size in bytes from which a group of gradients is sent; rank 0's value is used. 0: "
                                  "the size at which measured latency is a tenth of a group's time.", int,
)  # fmt: skip
FAIL, CONTINUE, REPLACE = "fail", "continue", "replace"
DISTRIBUTED_ON_LOSS: Final = Setting(
    "distributed.on_loss", FAIL, "Reaction of a training to the loss of a rank: fail (all ranks end), continue (the "
                                 "remaining ranks continue) or replace (they wait for a new process).", str,
    (FAIL, CONTINUE, REPLACE),
)  # fmt: skip
DISTRIBUTED_REPLACE_WAIT_S: Final = Setting(
    "distributed.replace_wait_s", 120.0, "Seconds that ranks wait for a process that replaces a lost rank before they "
                                         "continue without it.", float,
)  # fmt: skip
DISTRIBUTED_REGROUP_TIMEOUT_S: Final = Setting(
    "distributed.regroup_timeout_s", 20.0, "Seconds within which a rank must join the new group after a loss.", float,
)  # fmt: skip
DISTRIBUTED_ROSTER: Final = Setting(
    "distributed.roster", "", "Folder with files by which a new process finds the ranks to join; default: a folder of "
                              "the launch in the home folder.", str,
)  # fmt: skip


def read_count(text: str) -> int:
    """Parse a number of ranks.

    Raises:
        ValueError: it is not a whole number above 0.
    """
    if (count := int(text)) < 1:
        raise ValueError(f"{count} is not a number of ranks; expected 1 or more")
    return count


DISTRIBUTED_FEWEST_RANKS: Final = Setting(
    "distributed.fewest_ranks",
    1,
    "Smallest number of remaining ranks with which a training continues after a loss.",
    read_count,
)
_SHORTEST_TOKEN: Final = 16


def read_rank_token(text: str) -> str:
    """Parse a token of ranks; ``@FILE``: the first line of a file.

    Raises:
        ValueError: it is too short to be secret, or the file cannot be read.
    """
    token = parse_token(text)
    if 0 < len(token) < _SHORTEST_TOKEN:
        raise ValueError(f"the token has {len(token)} characters; expected at least {_SHORTEST_TOKEN} random ones")
    return token


DISTRIBUTED_TOKEN: Final = Setting(
    "distributed.token", "", "Secret shared by all ranks of a launch, at least 16 characters; @FILE: the first line "
                             "of a file. Default: created by rank 0 on one machine; none between "
                             "machines.", read_rank_token,
)  # fmt: skip
RENDEZVOUS_TIMEOUT_S: Final = Setting(
    "distributed.rendezvous_timeout_s", 300.0, "Seconds that a rank waits for the others to start.", float
)
PROFILE_FOLDER: Final = Setting(
    "profile.folder", "", "Folder for the breakdown of a program's time; snprof sets it. Default: none.", str
)
PROFILE_EVENTS: Final = Setting(
    "profile.events", 0, "Number of first calls that each profiled process keeps for a timeline; rdukit profile sets "
                         "it. 0: sums only.", int,
)  # fmt: skip
PROFILE_OUTPUT_FOLDER: Final = Setting(
    "profile.output_folder", "", "Output folder of compiles, which overrides the program's --output-folder; rdukit "
                                 "profile --try sets it.", str,
)  # fmt: skip
SAMBATUNE_DUMP_ROOT: Final = Setting(
    "sambatune.dump_root", ".", "Folder in which sambatune creates artifact_root if --artifact-root is not given; if "
                                "unset, the vendor's variable `DUMP_ROOT`.", str, also="DUMP_ROOT",
)  # fmt: skip
ENGINE_TF32: Final = Setting(
    "engine.tf32",
    False,
    "On a CUDA device: multiply f32 numbers as TF32, faster and with 10 bits of mantissa.",
    parse_bool,
)
KEEP_MEMORY: Final = Setting(
    "engine.keep_memory", True,
    "Keep freed memory in the process while a PEF is loaded (glibc), so that steps need no new memory from the system.",
    parse_bool,
)  # fmt: skip
ENGINE_THREADS: Final = Setting(
    "engine.threads",
    0,
    "Largest number of threads for a program's computations; 0: the number set by $OMP_NUM_THREADS or "
    "torch.set_num_threads, else the cores of its lease.",
    int,
)
