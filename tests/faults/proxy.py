"""A TCP proxy in front of a hub, whose links can be delayed, cut, stalled, corrupted and healed."""

import random
import selectors
import socket
import threading
import time


class Proxy:
    """Carries bytes between those who dial ``address`` and the hub behind it.

    Faults befall the connections that ``is_victim`` tells by the port from which they come; the others always work.
    Inside TLS nothing can be changed unnoticed: a byte that is not what it was ends the connection.
    """

    def __init__(self, behind, is_victim=lambda port: True):
        host, _, port = behind.rpartition(":")
        self._behind, self._is_victim = (host, int(port)), is_victim
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.is_cut = False
        """Connections are refused, and those that stood are closed."""
        self.is_stalled = False
        """Connections stand, and carry nothing."""
        self.delay_s = 0.0
        self.corruption = 0.0
        """The share of chunks, each as many bytes as there are to read, in which a bit is flipped."""
        self.corrupted = 0
        """How many bits were flipped."""
        self._corrupt_next = False
        self._rng = random.Random(0)
        self._pairs = {}
        self._victims = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._closed = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def cut(self):
        self.is_cut = True

    def stall(self):
        self.is_stalled = True

    def heal(self):
        self.is_cut = self.is_stalled = False
        self.corruption = 0.0

    def corrupt(self):
        """Flip a bit in the next bytes that pass."""
        self._corrupt_next = True

    def close(self):
        self._closed = True
        self._thread.join()

    def _serve(self):
        while not self._closed:
            if self.is_cut:
                for one in [*self._victims]:
                    self._drop(one)
            for key, _ in self._selector.select(0.02):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._pairs:
                    self._carry(key.fileobj)
            if self.is_stalled:
                time.sleep(0.02)
        for one in [*self._pairs]:
            self._drop(one)
        self._listener.close()
        self._selector.close()

    def _accept(self):
        near, (_, port) = self._listener.accept()
        is_victim = self._is_victim(port)
        if self.is_cut and is_victim:
            near.close()
            return
        try:
            far = socket.create_connection(self._behind, timeout=1)
        except OSError:
            near.close()
            return
        for one, other in ((near, far), (far, near)):
            one.settimeout(5)
            self._pairs[one] = other
            if is_victim:
                self._victims.add(one)
            self._selector.register(one, selectors.EVENT_READ)

    def _carry(self, one):
        is_victim = one in self._victims
        if self.is_stalled and is_victim:
            return
        try:
            data = one.recv(1 << 16)
            if data and is_victim and (self._corrupt_next or self._rng.random() < self.corruption):
                self._corrupt_next, place = False, self._rng.randrange(len(data))
                data = data[:place] + bytes([data[place] ^ 1 << self._rng.randrange(8)]) + data[place + 1 :]
                self.corrupted += 1
            if self.delay_s and is_victim:
                time.sleep(self.delay_s)
            self._pairs[one].sendall(data)
        except OSError:
            data = b""
        if not data:
            self._drop(one)

    def _drop(self, one):
        other = self._pairs.pop(one, None)
        if other is not None:
            self._pairs.pop(other, None)
            self._victims -= {one, other}
            for end in (one, other):
                self._selector.unregister(end)
                end.close()
