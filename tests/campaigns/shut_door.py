"""A door to a server on this machine: whoever knows its address reaches the server through it,
until it is shut.
"""

from __future__ import annotations

import contextlib
import socket
import threading


class Door:
    """Passes bytes on to a port of loopback, from a port of its own."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._open = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._open.getsockname()[1])
        self._pairs: list[socket.socket] = []
        self._serve()

    def shut(self) -> None:
        """Refuse everybody, and end the connections that there are."""
        # Closing alone would not wake the thread that waits for the next caller.
        with contextlib.suppress(OSError):
            self._open.shutdown(socket.SHUT_RDWR)
        self._open.close()
        for each in self._pairs:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._pairs.clear()

    def open_again(self) -> None:
        self._open = socket.create_server(("127.0.0.1", self.port))
        self._serve()

    def _serve(self) -> None:
        threading.Thread(target=self._accept, args=(self._open,), daemon=True).start()

    def _accept(self, at: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = at.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._to_port))
                except OSError:
                    caller.close()
                    continue
                self._pairs += [caller, server]
                for one, other in ((caller, server), (server, caller)):
                    threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_RDWR)
