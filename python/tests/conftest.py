from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import govnode
from govnode import testing

POLICY = """
name: {name}
max_tool_calls: 100000
max_attempts: 100000
max_concurrent: {concurrent}
backpressure_threshold: {concurrent}
blocked_patterns: ["rm -rf"]
drift_threshold: {drift}
"""


@pytest.fixture(scope="session")
def address() -> Iterator[testing.Address]:
    """One node for all tests that leave it as it is, or as many as GOVNODE_TEST_NODES says."""
    with testing.node(int(os.environ.get("GOVNODE_TEST_NODES", "1"))) as address:
        yield address


@pytest.fixture
def client(address: testing.Address) -> Iterator[govnode.Client]:
    with govnode.Client(address) as client:
        yield client


@pytest.fixture
def session(client: govnode.Client) -> govnode.Session:
    """A session of its own, under a policy that allows all but what is blocked."""
    put(client, "plain")
    return client.session(agent="tester", policy="plain")


def put(client: govnode.Client, name: str, *, concurrent: int = 50, drift: float = 0.0) -> None:
    client.put_policy(POLICY.format(name=name, concurrent=concurrent, drift=drift))


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., str]:
    """Runs a script in a process of its own, and returns what it printed."""

    def run(script: str, *args: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(script)
        done = subprocess.run([sys.executable, str(path), *args], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def renew_now(client: govnode.Client, ttl: float) -> None:
    """Have the leases of a TTL renewed at once: those long enough for a slow machine would take long to be due."""
    keeper = client._core.live().keeper
    with keeper._changed:
        keeper._due[ttl] = 0.0
        keeper._wake(keeper._asking, 0.0)


def eventually(condition: Callable[[], bool], within: float = 30.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.01)
