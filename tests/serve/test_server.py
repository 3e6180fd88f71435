"""The socket a server listens on."""

from __future__ import annotations

import socket

from slotgrid.serve.server import _listen


def test_small_writes_are_sent_at_once() -> None:
    """Without it the first token would wait for the client to acknowledge the headers, 40 ms on Linux."""
    with _listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
