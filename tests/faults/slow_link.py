"""A TCP proxy in front of a hub that is as far away, and as slow, as one likes."""

import asyncio
import contextlib
import socket
import threading

CHUNK_BYTES = 1024
BUFFER_BYTES = 1 << 14
"""What the proxy's sockets hold on their own: little, so that a full link is felt by the sender."""
SEGMENT_BYTES = 1400
"""Of a packet between sites. Loopback has packets of 64 kB, for which a sender keeps megabytes in its queue."""


class SlowLink:
    """Carries bytes between those who dial ``address`` and the hub behind it.

    Each connection, in each direction, passes ``bytes_per_s``; every byte arrives ``delay_s`` later. Opening a
    connection takes a round trip, as it does for TCP.
    """

    def __init__(self, behind, delay_s=0.0, bytes_per_s=None):
        host, _, port = behind.rpartition(":")
        self._behind, self._delay, self._rate = (host, int(port)), delay_s, bytes_per_s
        self._listener = _socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        """How many the hub has accepted so far."""
        self.carried = 0
        """Bytes in both directions so far."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._serve()], daemon=True)
        self._thread.start()

    def close(self):
        self._loop.call_soon_threadsafe(self._server.cancel)
        self._thread.join()
        self._loop.close()
        self._listener.close()

    async def _serve(self):
        self._server = asyncio.current_task()
        with contextlib.suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as group:
                while True:
                    near, _ = await self._loop.sock_accept(self._listener)
                    group.create_task(self._join(near))

    async def _join(self, near):
        far = _socket()
        with near, far, contextlib.suppress(OSError, ExceptionGroup):
            near.setblocking(False)
            await asyncio.sleep(2 * self._delay)
            await self._loop.sock_connect(far, self._behind)
            self.connections += 1
            async with asyncio.TaskGroup() as group:
                for one, other in ((near, far), (far, near)):
                    on_its_way = asyncio.Queue()
                    group.create_task(self._take(one, on_its_way))
                    group.create_task(self._deliver(on_its_way, other))

    async def _take(self, one, on_its_way):
        free_at = 0.0
        while True:
            data = await self._loop.sock_recv(one, CHUNK_BYTES if self._rate else 1 << 16)
            if data and self._rate:
                free_at = max(free_at, self._loop.time()) + len(data) / self._rate
                await asyncio.sleep(free_at - self._loop.time())
            on_its_way.put_nowait((self._loop.time() + self._delay, data))
            self.carried += len(data)
            if not data:
                return

    async def _deliver(self, on_its_way, other):
        while True:
            due, data = await on_its_way.get()
            await asyncio.sleep(due - self._loop.time())
            if not data:
                # The end of one direction ends the connection: TLS has no use for half of it.
                raise ConnectionResetError
            await self._loop.sock_sendall(other, data)


def _socket():
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
    made.setblocking(False)
    return made
