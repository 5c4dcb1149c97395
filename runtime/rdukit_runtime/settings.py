"""Settings of programs that run: numbers, ranks, devices, threads."""

from typing import Final

from rdukit.settings import Setting, parse_bool, parse_token

NUMERICS_TRAP: Final = Setting(
    "numerics.trap", False, "Raise NumericalException when a run makes NaN or infinite outputs.", parse_bool
)
DISTRIBUTED_TIMEOUT_S: Final = Setting(
    "distributed.timeout_s", 1800.0, "Seconds until a rank that waits for the others in a collective gives up; "
    "without it `CCL_TIMEOUT`, the vendor's variable, says them.", float, also="CCL_TIMEOUT",
)  # fmt: skip
AUTO, GLOO = "auto", "gloo"


def read_transport(text: str) -> str:
    """Parse a transport: ``auto``, ``gloo``, or the vendor's 1 and 0.

    Raises:
        ValueError: the text is not valid.
    """
    found = {"auto": AUTO, "1": AUTO, "gloo": GLOO, "0": GLOO}.get(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is no transport; expected auto (1), gloo (0)")
    return found


DISTRIBUTED_TRANSPORT: Final = Setting(
    "distributed.transport", AUTO, "How ranks exchange data: auto (through shared memory where all are on one machine, "
    "else gloo) or gloo; without it `SAMBA_CCL_USE_PCIE_TRANSPORT`, the vendor's variable, says it: 1 or 0.",
    read_transport, also="SAMBA_CCL_USE_PCIE_TRANSPORT",
)  # fmt: skip
DISTRIBUTED_OVERLAP: Final = Setting(
    "distributed.overlap", True, "Whether gradients are averaged while backward computes the next ones; without it "
    "`SAMBA_CCL_ASYNC_ALLREDUCE`, the vendor's variable, says it: 1 or 0.", parse_bool,
    also="SAMBA_CCL_ASYNC_ALLREDUCE",
)  # fmt: skip
DISTRIBUTED_GROUP_BYTES: Final = Setting(
    "distributed.group_bytes", 0, "Bytes from which gradients leave as a group; rank 0's counts. 0: those from which "
    "the latency that the ranks measure takes a tenth of a group's time.", int,
)  # fmt: skip
FAIL, CONTINUE, REPLACE = "fail", "continue", "replace"
DISTRIBUTED_ON_LOSS: Final = Setting(
    "distributed.on_loss", FAIL, "What the loss of a rank does to a training: fail (all ranks end), continue (the "
    "ranks that are left go on) or replace (they wait for a new process in the lost one's place).", str,
    (FAIL, CONTINUE, REPLACE),
)  # fmt: skip
DISTRIBUTED_REPLACE_WAIT_S: Final = Setting(
    "distributed.replace_wait_s", 120.0, "Seconds that ranks wait for a new process in a lost rank's place; then they "
    "go on without it.", float,
)  # fmt: skip
DISTRIBUTED_REGROUP_TIMEOUT_S: Final = Setting(
    "distributed.regroup_timeout_s", 20.0, "Seconds that a rank has to come to the group that the others make after a "
    "loss.", float,
)  # fmt: skip
DISTRIBUTED_ROSTER: Final = Setting(
    "distributed.roster", "", "Folder of files by which a new process finds the ranks that it joins; default: a folder "
    "of the launch in the home folder.", str,
)  # fmt: skip


def read_count(text: str) -> int:
    """Parse a number of ranks.

    Raises:
        ValueError: it is not a whole number above 0.
    """
    if (count := int(text)) < 1:
        raise ValueError(f"{count} is no number of ranks; expected 1 or more")
    return count


DISTRIBUTED_FEWEST_RANKS: Final = Setting(
    "distributed.fewest_ranks", 1, "Ranks that must be left for a training to go on after a loss.", read_count
)
_SHORTEST_TOKEN: Final = 16


def read_rank_token(text: str) -> str:
    """Parse a token of ranks; ``@FILE``: the first line of a file.

    Raises:
        ValueError: it is too short to be secret, or the file cannot be read.
    """
    token = parse_token(text)
    if 0 < len(token) < _SHORTEST_TOKEN:
        raise ValueError(f"the token has {len(token)} characters; expected {_SHORTEST_TOKEN} or more, at random")
    return token


DISTRIBUTED_TOKEN: Final = Setting(
    "distributed.token", "", "Secret that the ranks of a launch share, equal on all, 16 characters or more; @FILE: the "
    "first line of a file. Default: on one machine one that rank 0 makes; between machines none.", read_rank_token,
)  # fmt: skip
RENDEZVOUS_TIMEOUT_S: Final = Setting(
    "distributed.rendezvous_timeout_s", 300.0, "Seconds that a rank waits for the others to start.", float
)
PROFILE_FOLDER: Final = Setting(
    "profile.folder", "", "Where programs write the breakdown of their time; snprof sets it. Default: nowhere.", str
)
PROFILE_EVENTS: Final = Setting(
    "profile.events", 0, "Calls that each profiled process keeps for a timeline, the first ones; rdukit profile sets "
    "it. 0: sums only.", int,
)  # fmt: skip
PROFILE_OUTPUT_FOLDER: Final = Setting(
    "profile.output_folder", "", "Folder that compiles write to instead of the program's --output-folder; rdukit "
    "profile --try sets it. Default: the program's.", str,
)  # fmt: skip
SAMBATUNE_DUMP_ROOT: Final = Setting(
    "sambatune.dump_root", ".", "Folder in which sambatune makes artifact_root, without --artifact-root; without it "
    "`DUMP_ROOT`, the vendor's variable, says it.", str, also="DUMP_ROOT",
)  # fmt: skip
DEVICE: Final = Setting(
    "device",
    "cpu",
    "Where the emulated device's memory and kernels really are: cpu, cuda, or cuda:<number>.",
    str,
)
ENGINE_TF32: Final = Setting(
    "engine.tf32",
    False,
    "On a CUDA device: multiply f32 numbers as TF32, faster and with 10 bits of mantissa.",
    parse_bool,
)
KEEP_MEMORY: Final = Setting(
    "engine.keep_memory", True,
    "Keep freed memory in the process while a PEF is loaded (glibc): steps need not ask the system for it again.",
    parse_bool,
)  # fmt: skip
ENGINE_THREADS: Final = Setting(
    "engine.threads",
    0,
    "Most threads that a program computes with; 0: those that $OMP_NUM_THREADS or torch.set_num_threads chose, else as "
    "many as its lease has cores.",
    int,
)
