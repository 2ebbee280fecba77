"""Whether something listens on this machine, and whether it answers."""

from __future__ import annotations

import errno
import http.client
import socket
import time
from urllib.parse import urlsplit

from trainmaster.cli.settings import LOOPBACK
from trainmaster.errors import UnavailableError, UserError


def answers(url: str, *, timeout_s: float = 2.0) -> bool:
    """Return whether a GET of `url` is answered with success."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(
        parts.hostname or LOOPBACK, parts.port or 80, timeout=timeout_s
    )
    try:
        connection.request("GET", parts.path or "/")
        return 200 <= connection.getresponse().status < 300
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def require_free(port: int, setting: str, *, patience_s: float = 2.0) -> None:
    """See that `port` can be listened on, waiting a little for an earlier owner to let go.

    `setting` names what chooses the port, for the message.

    Raises:
        UnavailableError: something else has it.
        UserError: this user may not have it.
    """
    deadline = time.monotonic() + patience_s
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
                return
            except PermissionError as error:
                raise UserError(
                    f"port {port} may not be used by this user: choose another with {setting}"
                ) from error
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise UnavailableError(
                        f"port {port} is in use by another process: end it, or choose another port "
                        f"with {setting}",
                        code="port_in_use",
                    ) from error
        time.sleep(0.1)
