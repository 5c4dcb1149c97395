"""A device process seen from the box: started, given batches, watched. One event loop, in the main thread."""

import asyncio
import contextlib
import json
import logging
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument, RdukitError, RuntimeFault, Unavailable, error_from_body
from rdukit_serving.device.messages import MAX_PACKET_BYTES, RAN, RUN, decode, encode, is_json
from rdukit_serving.signature import ServedSignature

logger = logging.getLogger(__name__)

#: Seconds that a process has to release its tiles in order.
FINISH_GRACE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Files that a device process loads; ``draft``: PEF and checkpoint of a smaller model for speculative decoding."""

    name: str
    pef: Path
    checkpoint: Path | None
    serving: Mapping[str, Any]
    draft: tuple[Path, Path] | None = None

    def message(self) -> bytes:
        """Encode the first packet to the process."""
        return encode(
            name=self.name, pef=str(self.pef), checkpoint=str(self.checkpoint or ""),
            draft=[str(path) for path in self.draft or ()],
            serving=json.loads(json.dumps(self.serving, default=str)),
        )  # fmt: skip


def draft_files(pef: Path | None, checkpoint: Path | None) -> tuple[Path, Path] | None:
    """Return the files of a draft; None without both.

    Raises:
        InvalidArgument: only one of the two is given.
    """
    if pef is None and checkpoint is None:
        return None
    if pef is None or checkpoint is None:
        raise InvalidArgument(
            f"draft_pef is {pef or 'missing'}, draft_checkpoint {checkpoint or 'missing'}; expected both or neither"
        )
    return pef, checkpoint


#: Called when a run has ended: nanoseconds of copying in, computing, copying out; or why it failed.
OnRan = Callable[[tuple[int, int, int] | RdukitError], None]


class DeviceClient:
    """Running device process with its model loaded."""

    def __init__(self, process: subprocess.Popen[bytes], end: socket.socket, log_file: Path) -> None:
        self._process = process
        self._end = end
        self._log_file = log_file
        self._loop = asyncio.get_running_loop()
        self._sequence = 0
        #: Set while a run is under way.
        self._on_ran: OnRan | None = None
        #: ``time.monotonic()`` when it began.
        self.busy_since: float | None = None
        #: Called once when the process has ended, with its exit.
        self.on_end: Callable[[str], None] = lambda ending: None
        self._ending: str | None = None
        #: Called with each message of a text model.
        self.on_message: Callable[[dict[str, Any]], None] = lambda message: None
        #: Context, prompt and vocabulary of a text model, in tokens; its signature is empty.
        self.text: Mapping[str, int] | None = None
        self.signature: ServedSignature
        self.memory: memoryview
        #: Packets for which the socket had no room yet.
        self._unsent: deque[bytes] = deque()

    @classmethod
    async def start(cls, files: ModelFiles, log_file: Path, timeout_s: float) -> "DeviceClient":
        """Start a process and wait until its model is loaded.

        Raises:
            RdukitError: the process reports an error: ``NoResources``, ``PefCorrupt``, ``InvalidArgument`` …
            Unavailable: it ended, or took longer than ``timeout_s``.
        """
        log_file.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, log_file.open("ab") as log:
            try:
                process = subprocess.Popen(
                    [
                        sys.executable, "-u", "-m", "rdukit_serving.device.process",
                        "--socket", str(theirs.fileno()), "--parent", str(os.getpid()),
                    ],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )  # fmt: skip
            except OSError as cause:
                ours.close()
                raise Unavailable(f"no process could be started: {cause}") from cause
        client = cls(process, ours, log_file)
        try:
            await client._load(files, timeout_s)
        except BaseException:
            client.kill()
            raise
        return client

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def run(self, rows: int, on_ran: OnRan) -> None:
        """Run the batch that lies in ``memory``; one at a time. ``on_ran`` is called at the end, unless the process
        dies first."""
        assert self._on_ran is None, "a run is under way"
        self._sequence += 1
        self._on_ran = on_ran
        self.busy_since = time.monotonic()
        # A process that is gone shows at the socket's end.
        with contextlib.suppress(OSError):
            self._end.send(RUN.pack(self._sequence, rows))

    def send(self, **message: object) -> None:
        """Send a message to a text model. A process that is gone shows at the socket's end."""
        if message["kind"] in {"generate", "embed"}:
            self.busy_since = time.monotonic()
        self._unsent.append(encode(**message))
        if len(self._unsent) == 1:
            self._send_on()

    def _send_on(self) -> None:
        """Send waiting messages until the socket is full; the rest is sent when it has room."""
        try:
            while self._unsent:
                self._end.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._end, self._send_on)
            return
        except OSError:
            self._unsent.clear()
        if self._end.fileno() >= 0:
            self._loop.remove_writer(self._end)

    async def stop(self) -> None:
        """End it in order, by force after some seconds; its tiles are free afterwards."""
        with contextlib.suppress(OSError):
            self._end.send(encode(kind="stop"))
        deadline = time.monotonic() + FINISH_GRACE_S
        while self._process.poll() is None and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        self.kill()

    def kill(self) -> None:
        """Kill the process and its children, and wait for its end."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._ended()

    def last_words(self) -> str:
        """Return the last lines of its log, for a message; empty if it logged none."""
        with contextlib.suppress(OSError), self._log_file.open("rb") as log:
            log.seek(max(0, self._log_file.stat().st_size - 2048))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()[-3:] if line.strip()]
            return f". Last words: {' | '.join(lines)}" if lines else ""
        return ""

    async def _load(self, files: ModelFiles, timeout_s: float) -> None:
        readable = asyncio.Event()
        self._end.setblocking(False)
        self._loop.add_reader(self._end, readable.set)
        with contextlib.suppress(OSError):
            self._end.send(files.message())
        try:
            async with asyncio.timeout(timeout_s):
                await readable.wait()
        except TimeoutError as cause:
            raise Unavailable(
                f"the model was not loaded within {timeout_s:g} s; raise box.load_timeout_s, or try again"
            ) from cause
        finally:
            self._loop.remove_reader(self._end)
        packet, descriptors, _, _ = socket.recv_fds(self._end, MAX_PACKET_BYTES, 1)
        if not packet:
            status = self._process.wait()
            raise Unavailable(f"the inference process {describe_exit(status)}{self.last_words()}")
        message = decode(packet)
        if message["kind"] != "ready":
            raise error_from_body(message, RdukitError)
        if "text" in message:
            self.text = message["text"]
            self.signature = ServedSignature((), (), 1, 1, properties=message["properties"])
            if descriptors:  # of a model that hears
                self.memory = memoryview(mmap.mmap(descriptors[0], 0))
                os.close(descriptors[0])
        else:
            self.signature = ServedSignature.from_json(message["signature"])
            self.memory = memoryview(mmap.mmap(descriptors[0], self.signature.shared_bytes))
            os.close(descriptors[0])
        self._loop.add_reader(self._end, self._read)
        kernels = self.signature.properties.get("kernels", "")
        level = logging.WARNING if kernels.startswith("portable") else logging.INFO
        logger.log(level, "model loaded pid=%s pef=%s kernels=%s", self.pid, files.pef, kernels)

    def _read(self) -> None:
        try:
            packet = self._end.recv(MAX_PACKET_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            packet = b""
        if not packet:
            self._process.wait()
            self._ended()
            return
        if self.text is not None:
            self.busy_since = time.monotonic()
            self.on_message(decode(packet))
            return
        on_ran, self._on_ran = self._on_ran, None
        self.busy_since = None
        if on_ran is None:
            return
        if is_json(packet):
            on_ran(error_from_body(decode(packet), RuntimeFault))
        else:
            _, copy_in, compute, copy_out = RAN.unpack(packet)
            on_ran((copy_in, compute, copy_out))

    def _ended(self) -> None:
        if self._ending is not None:
            return
        status = self._process.returncode
        self._ending = f"{describe_exit(status)}{self.last_words()}"
        self._loop.remove_reader(self._end)
        self._loop.remove_writer(self._end)
        self._end.close()
        self._on_ran, self.busy_since = None, None
        self.on_end(self._ending)


def describe_exit(status: int) -> str:
    """Describe how a process ended: ``exited with status 3`` or ``was killed by SIGKILL``."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
