"""Device process of a configuration: its experts share the process, each with its own queue; for one event loop."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rdukit.errors import RdukitError, RuntimeFault, Unavailable, error_from_body
from rdukit.settings import resolve
from rdukit_serving.device.client import DeviceClient, ModelFiles
from rdukit_serving.experts.sizes import FoundConfiguration
from rdukit_serving.experts.tiers import ExpertSwitch
from rdukit_serving.settings import INFER_TIMEOUT_S, LOAD_TIMEOUT_S
from rdukit_serving.text.queue import PARTS

logger = logging.getLogger(__name__)

#: Switches the device to an expert's parameters and counts that. Returns the bytes that the emulated device copied.
CountSwitch = Callable[[str], ExpertSwitch]


class ExpertLine:
    """Part of a device process that acts as one expert or adapter: a ``TextDevice``."""

    def __init__(self, process: "ExpertProcess", expert: str, text: Mapping[str, int], adapter: str = "") -> None:
        self.expert, self.adapter = expert, adapter
        self.text: Mapping[str, int] | None = text
        self.on_message: Callable[[dict[str, Any]], None] = lambda message: None
        self.busy_since: float | None = None
        self._process = process

    def send(self, **message: object) -> None:
        """Send a message about a text of the expert."""
        self._process.send(self, message)


class ExpertProcess:
    """Device process with the PEF of a configuration: started when it is needed, watched."""

    def __init__(
        self, configuration: FoundConfiguration, log_file: Path, count_switch: CountSwitch,
        on_end: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        """``on_end``: called with the configuration's name and how the process ended."""
        self.configuration = configuration
        #: Rows of its caches; the texts of all experts wait for them in order.
        self.turns = asyncio.Semaphore(configuration.text.texts)
        self.numbers: Iterator[int] = itertools.count(1)
        self.starts = 0
        self._log_file, self._count_switch, self._on_end = log_file, count_switch, on_end
        self._client: DeviceClient | None = None
        self._starting = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        #: The line of each text in the process, and its copies.
        self._lines: dict[int, ExpertLine] = {}
        self._switches: dict[int, ExpertSwitch] = {}
        #: Loads and unloads that are under way.
        self._asked: dict[int, asyncio.Future[None]] = {}

    @property
    def pid(self) -> int | None:
        """Return the process id, while there is a process."""
        return None if self._client is None else self._client.pid

    @property
    def properties(self) -> Mapping[str, str]:
        """Return the process's description of the loaded PEF; empty while there is none."""
        return {} if self._client is None else self._client.signature.properties

    async def start(self) -> None:
        """Start the process, unless it runs.

        Raises:
            RdukitError: the PEF cannot be loaded.
        """
        async with self._starting:
            if self._client is not None:
                return
            its = self.configuration
            files = ModelFiles(its.name, its.pef, None, {"is_of_experts": True}, its.draft)
            client = await DeviceClient.start(files, self._log_file, resolve(LOAD_TIMEOUT_S))
            client.on_message, client.on_end = self._take, self._ended
            self._client = client
            self.starts += 1
            self._watching = asyncio.create_task(self._watch(client))

    def line(self, expert: str, adapter: str = "") -> ExpertLine:
        """Return the ``TextDevice`` of a loaded expert or of one of its adapters."""
        return ExpertLine(self, expert, self.configuration.text.figures(), adapter)

    async def load(self, expert: str, checkpoint: Path, file: Path, adapters: Mapping[str, Path]) -> None:
        """Load the weights of an expert, with its adapters, prepared as ``file``.

        Raises:
            RdukitError: the checkpoint cannot be used. Unavailable: the process ended.
        """
        files = {name: str(path) for name, path in adapters.items()}
        await self._ask(kind="load", expert=expert, checkpoint=str(checkpoint), file=str(file), adapters=files)

    async def unload(self, expert: str) -> None:
        """Free the weights of an expert.

        Raises:
            Unavailable: the process ended, and they with it.
        """
        await self._ask(kind="unload", expert=expert)

    def send(self, line: ExpertLine, message: Mapping[str, object]) -> None:
        """Send a message about a sequence; ``line`` gets its answers. Without a process, it gets an error."""
        number = message["number"]
        assert isinstance(number, int)
        if self._client is None:
            line.on_message({"events": [{"number": number, "kind": "died", "ending": "is not there"}]})
            return
        if message["kind"] != "cancel":
            self._lines[number] = line
        self._client.send(**message, expert=line.expert, adapter=line.adapter)

    async def close(self) -> None:
        """End the process."""
        client, self._client = self._client, None
        if self._watching is not None:
            self._watching.cancel()
        if client is not None:
            client.on_end = lambda ending: None
            await client.stop()
        self._fail("was ended")

    async def _ask(self, **message: object) -> None:
        if self._client is None:
            raise Unavailable(f"the inference process of configuration {self.configuration.name} is not running")
        number = next(self.numbers)
        answered = self._asked[number] = asyncio.get_running_loop().create_future()
        self._client.send(number=number, **message)
        try:
            await answered
        finally:
            self._asked.pop(number, None)

    def _take(self, message: Mapping[str, Any]) -> None:
        """Hand each event of a packet to the line of its text."""
        events: dict[ExpertLine, list[dict[str, Any]]] = {}
        for event in message["events"]:
            number, kind = event["number"], event["kind"]
            answered = self._asked.get(number)
            if answered is not None:
                if answered.done():
                    continue
                if kind == "refused":
                    answered.set_exception(error_from_body(event, RuntimeFault))
                else:
                    answered.set_result(None)
                continue
            line = self._lines.get(number)
            if line is None:
                continue
            if kind == "switched":
                self._switches[number] = _added(self._switches.get(number), self._count_switch(line.expert))
                continue
            if kind not in PARTS:
                del self._lines[number]
                switch = self._switches.pop(number, None)
                if switch is not None:
                    event |= {"switch_bytes": switch.switch_bytes, "switch_s": switch.switch_s}
            events.setdefault(line, []).append(event)
        if not self._lines and self._client is not None:
            self._client.busy_since = None
        for line, those in events.items():
            line.on_message({"events": those})

    def _ended(self, ending: str) -> None:
        logger.warning("inference process ended configuration=%s how=%s", self.configuration.name, ending)
        self._client = None
        if self._watching is not None:
            self._watching.cancel()
        self._fail(ending)
        self._on_end(self.configuration.name, ending)

    def _fail(self, ending: str) -> None:
        error: RdukitError = Unavailable(f"the inference process {ending}")
        for answered in self._asked.values():
            if not answered.done():
                answered.set_exception(error)
        self._lines.clear()
        self._switches.clear()

    async def _watch(self, client: DeviceClient) -> None:
        """Kill a process whose run takes too long; it is then started again."""
        limit = resolve(INFER_TIMEOUT_S)
        while True:
            await asyncio.sleep(min(1.0, limit / 4))
            if client.busy_since is not None and time.monotonic() - client.busy_since > limit:
                logger.error(
                    "inference hangs configuration=%s pid=%s seconds=%s", self.configuration.name, client.pid, limit
                )
                client.kill()


def _added(former: ExpertSwitch | None, switch: ExpertSwitch) -> ExpertSwitch:
    """Return the sum of both switches."""
    if former is None:
        return switch
    return ExpertSwitch(
        former.switch_bytes + switch.switch_bytes, former.switch_s + switch.switch_s,
        former.load_bytes + switch.load_bytes, former.load_s + switch.load_s,
    )  # fmt: skip
