"""What the client costs, beside bare POSTs of the same bodies to the same node, in one run: `make bench-python`.

Both sides take turns, so that what else the machine does falls on both. Nothing here fails for being slow.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2

import govnode
from govnode import testing

POLICY = "name: costs\nmax_tool_calls: 100000000\nmax_attempts: 100000000\nmax_concurrent: 4096\nlog_all_calls: false\n"
ARGUMENTS = {"command": "ls -la", "path": "/srv/app"}


class Bare:
    """Two POSTs for each call, with the bodies that the client sends."""

    def __init__(self, address: str, session: str) -> None:
        self._http = httpx2.Client(base_url=f"http://{address}/govnode.v1.CallService/")
        self._session = session
        self._ids = itertools.count()
        self._name = f"bare-{id(self)}"

    def call(self) -> None:
        """Begin a call and end it."""
        id = f"{self._name}-{next(self._ids)}"
        begin = {
            "sessionId": self._session,
            "callId": id,
            "tool": "shell",
            "argumentsJson": json.dumps(ARGUMENTS),
            "kind": "KIND_TOOL",
            "wait": "10s",
        }
        self._post("BeginCall", begin)
        self._post("EndCall", {"sessionId": self._session, "callId": id, "status": "STATUS_SUCCEEDED"})

    def _post(self, method: str, body: dict[str, Any]) -> None:
        answer = self._http.post(method, json=body)
        if answer.status_code != 200 or answer.json()["outcome"] not in ("OUTCOME_ADMITTED", "OUTCOME_ENDED"):
            raise RuntimeError(answer.text)


def one_after_another(calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, tuple[float, float]]:
    """Return for each side the median time and the CPU of a call, in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    cpu = dict.fromkeys(calls, 0.0)
    for _ in range(rounds):
        for name, call in calls.items():
            used, start = time.process_time(), time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
            cpu[name] += time.process_time() - used
    return {name: (statistics.median(times[name]) * 1e3, cpu[name] / rounds * 1e3) for name in calls}


def threads(make: Callable[[], Callable[[], None]], n: int, seconds: float) -> float:
    """Return how many calls a second so many threads make."""
    done = [0] * n
    until = time.perf_counter() + seconds

    def work(i: int) -> None:
        call = make()
        while time.perf_counter() < until:
            call()
            done[i] += 1

    all_of_them = [threading.Thread(target=work, args=(i,)) for i in range(n)]
    for t in all_of_them:
        t.start()
    for t in all_of_them:
        t.join()
    return sum(done) / seconds


async def tasks(address: str, session_id: str, n: int, seconds: float) -> float:
    """Return how many calls a second so many tasks of an AsyncClient make."""
    done = 0
    async with govnode.AsyncClient(address) as client:
        session = client.session(session_id, agent="costs", policy="costs")
        until = time.perf_counter() + seconds

        async def work() -> None:
            nonlocal done
            while time.perf_counter() < until:
                async with session.call("shell", ARGUMENTS):
                    pass
                done += 1

        await asyncio.gather(*(work() for _ in range(n)))
    return done / seconds


def imported() -> float:
    """Return how long `import govnode` takes, in milliseconds: the best of some."""

    def best(code: str) -> float:
        def once() -> float:
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            return time.perf_counter() - start

        return min(once() for _ in range(10))

    return (best("import govnode") - best("pass")) * 1e3


def main() -> None:
    """Print what it comes to."""
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=1500)
    options.add_argument("--seconds", type=float, default=4.0)
    options.add_argument("--turns", type=int, default=3)
    given = options.parse_args()
    with testing.node() as address, govnode.Client(address) as client:
        client.put_policy(POLICY)
        session = client.session("costs", agent="costs", policy="costs")
        session.open()

        def ours() -> None:
            with session.call("shell", ARGUMENTS):
                pass

        bare = Bare(address, "costs")
        one_after_another({"ours": ours, "bare": bare.call}, 50)  # connections, and what is imported late
        took = one_after_another({"ours": ours, "bare": bare.call}, given.rounds)
        print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, the node on the same machine")
        print(
            f"one call, median:      {took['ours'][0]:.2f} ms, two POSTs {took['bare'][0]:.2f} ms, "
            f"{took['ours'][0] / took['bare'][0]:.2f} times"
        )
        print(
            f"one call, CPU:         {took['ours'][1]:.2f} ms, two POSTs {took['bare'][1]:.2f} ms, "
            f"{took['ours'][1] / took['bare'][1]:.2f} times"
        )
        rates: dict[str, list[float]] = {"ours": [], "bare": [], "tasks": []}
        for _ in range(given.turns):
            rates["ours"].append(threads(lambda: ours, 32, given.seconds))
            rates["bare"].append(threads(lambda: Bare(address, "costs").call, 32, given.seconds))
            rates["tasks"].append(asyncio.run(tasks(address, "costs", 256, given.seconds)))
        rate = {name: statistics.median(r) for name, r in rates.items()}
        print(
            f"32 threads:            {rate['ours']:,.0f} calls/s, that POST {rate['bare']:,.0f}, "
            f"{rate['ours'] / rate['bare']:.1f} times"
        )
        print(f"256 tasks on a loop:   {rate['tasks']:,.0f} calls/s")
    print(f"import govnode:        {imported():.0f} ms")


if __name__ == "__main__":
    main()
