"""A real node for tests:

with govnode.testing.node() as address:
    client = govnode.Client(address)
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
from collections.abc import Iterator

from ._binary import find


class Address(str):
    """The address of the first node, and what else there is to know of those that were started."""

    __slots__ = ("all", "pids", "process")

    #: The addresses of all nodes.
    all: list[str]
    #: The processes of the nodes, in the same order.
    pids: list[int]
    #: What started them, and ends them when it ends.
    process: subprocess.Popen[str]


@contextlib.contextmanager
def node(nodes: int = 1, *, backend: str | None = None, options: tuple[str, ...] = ()) -> Iterator[Address]:
    """Start a node, or several as a cluster, on free ports, and end them with the block.

    One node is in memory alone, several are on Raft in a temporary folder, unless ``backend`` says otherwise.
    ``options`` are further flags of ``govnode dev``.
    """
    command = [find(), "dev", "--listen", "127.0.0.1:0", "--nodes", str(nodes), *options]
    command += ["--backend", backend or ("memory" if nodes == 1 else "raft")]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield _ready(process, nodes)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _ready(process: subprocess.Popen[str], nodes: int) -> Address:
    """Read what it prints until the nodes are ready."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        with contextlib.suppress(ValueError):  # it is closed at the end
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    printed: list[str] = []
    found: dict[str, tuple[str, int]] = {}
    while True:
        try:
            line = lines.get(timeout=60)
        except queue.Empty:
            line = None
        if line is None:
            raise RuntimeError("govnode: the node did not start:\n" + "".join(printed))
        printed.append(line)
        if line.startswith("node "):
            _, name, api, pid = line.split()
            found[name] = api.partition("=")[2], int(pid.partition("=")[2])
        if line.strip() == "ready" and len(found) == nodes:
            address = Address(next(iter(found.values()))[0])
            address.all = [a for a, _ in found.values()]
            address.pids = [p for _, p in found.values()]
            address.process = process
            return address
