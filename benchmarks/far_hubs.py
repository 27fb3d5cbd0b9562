"""A TCP proxy in front of a hub that delays what comes from and goes to other hubs, and nothing else.

Clients and hubs dial the same address. Which process dialled is found in ``/proc``, so this works on Linux alone.
"""

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable
from pathlib import Path


class FarHub:
    """Carries bytes between those who dial ``address`` and the hub behind it."""

    def __init__(
        self, behind: str, delay_s: float, is_far: Callable[[int], bool], bytes_per_s: float = math.inf
    ) -> None:
        """Delay each way what passes on connections whose port of origin ``is_far``, at so many bytes per second."""
        host, _, port = behind.rpartition(":")
        self._behind, self._delay, self._is_far, self._rate = (host, int(port)), delay_s, is_far, bytes_per_s
        self._loop, self._stop = asyncio.new_event_loop(), asyncio.Event()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._serve(ready)], daemon=True)
        self._thread.start()
        ready.wait()

    def close(self) -> None:
        """End all connections."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self, ready: threading.Event) -> None:
        server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await self._stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_far = self._is_far(writer.get_extra_info("peername")[1])
        delay, rate = (self._delay, self._rate) if is_far else (0.0, math.inf)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_connection(*self._behind)
            ways = [
                asyncio.ensure_future(task)
                for source, target in ((reader, far_writer), (far_reader, writer))
                for on_its_way in [asyncio.Queue()]
                for task in (self._take(source, on_its_way, delay, rate), self._deliver(on_its_way, target))
            ]
            # The end of one direction ends the connection.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            far_writer.close()
        writer.close()

    async def _take(self, source: asyncio.StreamReader, on_its_way: asyncio.Queue, delay: float, rate: float) -> None:
        passed = 0.0
        while data := await source.read(1 << 14):
            passed = max(passed, self._loop.time()) + len(data) / rate
            on_its_way.put_nowait((passed + delay, data))
        await asyncio.sleep(delay)

    async def _deliver(self, on_its_way: asyncio.Queue, target: asyncio.StreamWriter) -> None:
        while True:
            due, data = await on_its_way.get()
            await asyncio.sleep(due - self._loop.time())
            target.write(data)
            await target.drain()


def holds_port(pid: int, port: int) -> bool:
    """Whether a process has a TCP connection that comes from a port of this machine."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{words[9]}]" for words in lines if words[1].endswith(f":{port:04X}")}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(link.readlink()) in inodes:
                return True
    return False
