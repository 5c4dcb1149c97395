"""A greedy program in a fence: processes, memory, files and disk have limits, and whoever meets one is told which."""

import pytest

from rdukit.fence.probe import what_holds
from rdukit.fence.spec import DISK_LIMIT, MEMORY_LIMIT, FenceLimits
from support import shows
from support.fences import Run, listed_processes

pytestmark = [
    shows("security", "job-boxes"),
    shows("security", "job-boxes"),
    pytest.mark.skipif(not what_holds().holds, reason=f"no fence holds here: {what_holds().why}"),
]


def test_a_fork_bomb_meets_its_limit_and_ends_with_its_program(run: Run) -> None:
    code = """
made = 0
try:
    while made < 1000:
        if os.fork() == 0:
            time.sleep(6007)
        made += 1
except OSError as error:
    print(json.dumps([made, errno.errorcode[error.errno]]))
"""
    made, error = run(code).said
    assert 10 < made < 64 and error == "EAGAIN"
    assert "time.sleep(6007)" not in listed_processes()


def test_where_memory_runs_out_it_is_ended_before_others(run: Run) -> None:
    code = """
def lower(text):
    with open("/proc/self/oom_score_adj", "w") as file: file.write(text)
print(json.dumps([attempt(lambda: int(open("/proc/self/oom_score_adj").read())), attempt(lambda: lower("-500"))]))
"""
    assert run(code).said == [500, "EACCES"]


def test_memory_files_and_their_size_meet_their_limits(run: Run) -> None:
    code = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
said = {}
try:
    bytearray(512 << 20); said["memory"] = "done"
except MemoryError:
    said["memory"] = "refused"
said["sparse"] = attempt(lambda: os.truncate(os.open(sys.argv[1] + "/sparse", os.O_CREAT | os.O_RDWR), 1 << 40))
said["temporary"] = attempt(lambda: os.posix_fallocate(os.open("/dev/shm/much", os.O_CREAT | os.O_RDWR), 0, 1 << 30))
held = []
def open_many():
    while True: held.append(os.open("/dev/null", 0))
said["files"] = attempt(open_many)
for one in held: os.close(one)
said["core"] = resource.getrlimit(resource.RLIMIT_CORE)[1]
print(json.dumps(said))
"""
    limits = FenceLimits(256 << 20, 64, 1 << 30, 100, temporary_bytes=1 << 20)
    assert run(code, limits=limits).said == {
        "memory": "refused", "sparse": "EFBIG", "temporary": "ENOSPC", "files": "EMFILE", "core": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("n = 0\nwhile True:\n    n += 1; open(str(n), 'wb').write(bytes(1 << 20))", "bytes in its folders"),
        ("n = 0\nwhile True:\n    n += 1; open(str(n), 'wb')", "files and folders"),
        (
            "d = os.open(sys.argv[1] + '/gone', os.O_CREAT | os.O_RDWR); os.unlink(sys.argv[1] + '/gone')\n"
            "os.write(d, bytes(64 << 20)); time.sleep(6007)",
            "bytes in its folders",
        ),
        ("os.write(1, bytes(40 << 20)); time.sleep(6007)", "bytes in its folders"),  # what it says is kept
        (
            "while True:\n    os.mkdir('a' * 200); os.chdir('a' * 200); len(os.listdir()) \n"
            "    if os.stat('.').st_nlink > 3: break",
            "longer than a path",
        ),
    ],
)  # fmt: skip
def test_filling_the_disk_ends_the_program_with_the_reason(run: Run, code: str, why: str) -> None:
    fenced = run(code, limits=FenceLimits(processes=64, disk_bytes=32 << 20, disk_files=2000))
    assert fenced.status == DISK_LIMIT
    assert "fence: disk: " in fenced.text and why in fenced.text


@pytest.mark.parametrize(
    "code",
    [
        "for _ in range(3):\n    if os.fork() == 0: held = bytes(os.urandom(1 << 20)) * 48; time.sleep(6007)",
        "import mmap\nheld = mmap.mmap(-1, 128 << 20); m = b'a' * (1 << 20)\nfor _ in range(128): held.write(m)",
        "held = os.memfd_create('a'); m = b'a' * (1 << 20)\nfor _ in range(128): os.write(held, m)",
        "held = open('/dev/shm/much', 'wb'); m = b'a' * (1 << 20)\nfor _ in range(128): held.write(m)",
    ],
    ids=["processes", "shared", "memory file", "temporary file"],
)
def test_memory_of_all_its_processes_together_meets_its_limit(run: Run, code: str) -> None:
    fenced = run(code + "\ntime.sleep(6007)", limits=FenceLimits(memory_bytes=96 << 20, processes=64))
    assert fenced.status == MEMORY_LIMIT, fenced.text
    assert "fence: memory: more than 100663296 bytes of all its processes" in fenced.text


@pytest.mark.long
def test_what_its_processes_share_counts_once(run: Run) -> None:
    code = """
held = bytes(os.urandom(1 << 20)) * 48
children = [os.fork() for _ in range(3)]
time.sleep(3)
if all(children): print(json.dumps([os.wait()[1] for _ in children]))
"""
    assert run(code, limits=FenceLimits(memory_bytes=96 << 20, processes=64)).said == [0, 0, 0]
