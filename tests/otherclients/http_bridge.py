"""A loopback bridge to `stepper mcp --http` for clients that cannot send the key."""

from __future__ import annotations

import re
import socket
import socketserver
import threading
from types import TracebackType


class Bridge(socketserver.ThreadingTCPServer):
    """Forwards each request with the key.

    Use it as a context manager with the address `url`.
    """

    daemon_threads = True

    def __init__(self, port: int, key: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port, self.key, self.own_port = port, key, self.server_address[1]
        self.url = f"http://127.0.0.1:{self.own_port}/mcp"

    def __enter__(self) -> Bridge:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections that are closed early."""


class _Handler(socketserver.StreamRequestHandler):
    server: Bridge

    def handle(self) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n") and (line := self.rfile.readline()):
            head += line
        length = re.search(rb"(?im)^content-length: *(\d+)", head)
        body = self.rfile.read(int(length[1])) if length else b""
        # replace the bridge's address; forward any other Host or Origin unchanged
        head = head.replace(
            b":%d\r\n" % self.server.own_port, b":%d\r\n" % self.server.port
        )
        head = re.sub(rb"(?im)^connection: .*\r\n", b"", head)
        has_body = (
            b"Connection: close\r\nAuthorization: Bearer %s\r\n\r\n"
            % self.server.key.encode()
        )
        with socket.create_connection(("127.0.0.1", self.server.port)) as to:
            to.sendall(head[:-2] + has_body + body)
            while piece := to.recv(1 << 16):
                self.wfile.write(piece)
                self.wfile.flush()
