"""A node that can be made to fail: what stands between a client and a real node."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


class _Server:
    """Serves on an address of its own until its block is left."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._end = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._server.shutdown()
        self._server.server_close()


class Scripted(_Server):
    """A node that answers as it is told: ``answer`` gets the method and the message, and returns the answer."""

    def __init__(
        self, answer: Callable[[str, dict[str, Any]], dict[str, Any]], status: Callable[[str], int] = lambda _: 200
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                method = self.path.rpartition("/")[2]
                content = json.dumps(answer(method, body)).encode()
                self.send_response(status(method))
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        super().__init__(Handler)

    def __enter__(self) -> Scripted:
        return self


class Proxy(_Server):
    """Hands requests on to a node, or does not.

    ``fault`` gets the method and the body of each and returns what befalls it: "" for nothing, ``lose`` (the node gets
    it and its answer is lost), ``refuse`` (the connection breaks before), ``hang`` (no answer until the end), or
    ``answer`` (the node does not get it, and something else answers in its place).
    """

    def __init__(self, node: str) -> None:
        self.fault: Callable[[str, bytes], str] = lambda method, body: ""
        self.seen: list[tuple[str, bytes]] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                method = self.path.rpartition("/")[2]
                proxy.seen.append((method, body))
                fault = proxy.fault(method, body)
                if fault == "hang":
                    proxy._end.wait()
                if fault in ("hang", "refuse"):
                    self.close_connection = True
                    return
                if fault == "answer":
                    self.send_response(200)
                    self.send_header("Content-Length", "4")
                    self.end_headers()
                    self.wfile.write(b"<p/>")
                    return
                node_ = http.client.HTTPConnection(node)
                node_.request("POST", self.path, body, dict(self.headers))
                response = node_.getresponse()
                content = response.read()
                node_.close()
                if fault == "lose":
                    self.close_connection = True
                    return
                self.send_response(response.status)
                for name, value in response.getheaders():
                    if name.lower() not in ("content-length", "date", "govnode-leader"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        super().__init__(Handler)

    def once(self, fault: str, method: str) -> None:
        """Let a fault befall the next request of a method."""
        left = [fault]
        self.fault = lambda m, body: left.pop() if m == method and left else ""

    def always(self, fault: str) -> None:
        """Let a fault befall everything from now on."""
        self.fault = lambda method, body: fault

    def __enter__(self) -> Proxy:
        return self
