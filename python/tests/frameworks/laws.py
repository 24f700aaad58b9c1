"""What every adapter must do, on its real framework and a real node: a test file makes it a class of its own.

    class TestLangChain(Laws):
        driver = Driver()

Where a point cannot hold for a framework, its class says so and why.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually
from faults import Proxy

import govnode
from govnode import testing
from govnode.adapters import Killed, PolicyViolationError

Script = list[Any]  # of turns: a list of (tool, arguments), or the final text
SCRIPT: Script = [[("shell", {"command": "ls"})], [("shell", {"command": "rm -rf /"})], "done"]


# Rules that look at what the tool returns.
RULES = """apiVersion: edictum/v1
kind: Ruleset
metadata: {name: reviewed}
defaults: {mode: enforce}
rules:
  - {id: keys, type: post, tool: "*", when: {output.text: {matches: "sk-[a-z]+"}},
     then: {action: redact, message: a key}}
  - {id: pay, type: post, tool: "*", when: {output.text: {contains: ran salary}},
     then: {action: block, message: the salary is nobody's business}}
"""


class Seen:
    """What a run came to."""

    def __init__(self, model_saw: list[str], final: str) -> None:
        self.model_saw = model_saw  # the results of tools, in order
        self.final = final


class Driver:
    """Runs an agent of a framework. A test file says how."""

    #: The ways in which an agent is run: what ``go`` takes.
    modes: tuple[str, ...] = ("sync", "async")
    #: Whether tools may be plain functions, which run in threads when the agent is run on a loop.
    threads = True

    def run(self, session: Any, script: Script, tool: Callable[..., Any], mode: str, **options: Any) -> Seen:
        """Run an agent with one governed tool, ``shell(command)``."""
        if mode == "sync":
            return self.go(session, script, tool, **options)
        return asyncio.run(self.ago(session, script, tool, mode, **options))

    def go(self, session: Any, script: Script, tool: Callable[..., Any], **options: Any) -> Seen:
        raise NotImplementedError

    async def ago(self, session: Any, script: Script, tool: Callable[..., Any], mode: str, **options: Any) -> Seen:
        raise NotImplementedError


class Guard:
    """A guardrail of a policy that appends to the command of each call."""

    def __enter__(self) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                changed = {"command": asked["args"]["command"].removesuffix(" -l") + " -l"}
                answer = json.dumps({"decision": "modify", "reason": "longer", "modified_args": changed}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Tool:
    """A tool that notes what it ran."""

    def __init__(self, mode: str = "sync") -> None:
        self.executed: list[str] = []

        def shell(command: str) -> str:
            """Pretends to run a command."""
            self.executed.append(command)
            return f"ran {command}"

        async def ashell(command: str) -> str:
            """Pretends to run a command."""
            return shell(command)

        ashell.__name__ = "shell"
        self.function: Callable[..., Any] = shell if mode == "sync" else ashell


class Laws:
    """The points of all adapters."""

    driver: Driver

    @pytest.fixture
    def mode(self, request: pytest.FixtureRequest) -> str:
        mode: str = request.param
        if mode not in self.driver.modes:
            pytest.skip(f"this framework has no way to run that is {mode}")
        return mode

    @pytest.fixture
    def loop_mode(self) -> str:
        return next(m for m in self.driver.modes if m != "sync")

    every_mode = pytest.mark.parametrize("mode", ["sync", "async", "stream"], indirect=True)

    @every_mode
    def test_allow_and_deny(self, session: govnode.Session, mode: str) -> None:
        tool = Tool(mode)
        seen = self.driver.run(session, SCRIPT, tool.function, mode)
        assert tool.executed == ["ls"]
        assert "ran ls" in seen.model_saw[0]
        assert "Denied by govnode" in seen.model_saw[1]
        assert "rm -rf" in seen.model_saw[1]
        assert "done" in seen.final
        info = session.read()
        assert (info.executions, info.failures, info.attempts, info.open_calls) == (1, 0, 2, ())

    @every_mode
    def test_async_client(self, session: govnode.Session, client: govnode.Client, mode: str) -> None:
        """A session of an AsyncClient serves sync hooks too."""
        other = govnode.AsyncClient(client.config.urls)
        tool = Tool("sync")
        seen = self.driver.run(other.session(session.id, agent="tester", policy="plain"), SCRIPT, tool.function, mode)
        assert tool.executed == ["ls"]
        assert "rm -rf" in seen.model_saw[1]
        asyncio.run(other.close())

    @every_mode
    def test_changed_arguments(self, client: govnode.Client, mode: str) -> None:
        with Guard() as url:
            client.put_policy(f'name: guarded-{mode}\nguardrails: [{{name: longer, url: "{url}", timeout_ms: 5000}}]\n')
            session = client.session(agent="tester", policy=f"guarded-{mode}")
            tool = Tool(mode)
            seen = self.driver.run(session, [[("shell", {"command": "ls"})], "done"], tool.function, mode)
        assert tool.executed == ["ls -l"]
        assert "ran ls -l" in seen.model_saw[0]

    @every_mode
    def test_what_rules_leave_of_an_output(self, client: govnode.Client, mode: str) -> None:
        client.put_policy(RULES)
        session = client.session(agent="tester", policy="reviewed")
        tool = Tool(mode)
        script: Script = [[("shell", {"command": c})] for c in ("sk-abc", "salary", "ls")]
        seen = self.driver.run(session, [*script, "done"], tool.function, mode)
        assert tool.executed == ["sk-abc", "salary", "ls"]
        redacted, suppressed, plain = seen.model_saw
        assert "ran [REDACTED]" in redacted
        assert "Content redacted by keys." in redacted
        assert "sk-abc" not in redacted
        assert "[OUTPUT SUPPRESSED] the salary is nobody's business" in suppressed
        assert "ran salary" not in suppressed
        assert "ran ls" in plain
        assert "done" in seen.final
        assert (session.read().executions, session.read().open_calls) == (3, ())

    @every_mode
    def test_what_rules_leave_of_an_error(self, client: govnode.Client, mode: str) -> None:
        client.put_policy(RULES)
        session = client.session(agent="tester", policy="reviewed")

        def shell(command: str) -> str:
            """Fails."""
            raise ValueError("no such key: sk-abc")

        async def ashell(command: str) -> str:
            """Fails."""
            return shell(command)

        ashell.__name__ = "shell"
        told = ""
        try:  # some frameworks end the run, some tell the model
            seen = self.driver.run(
                session, [[("shell", {"command": "ls"})], "done"], shell if mode == "sync" else ashell, mode
            )
            told = "".join(seen.model_saw)
        except Exception as e:
            told = str(e)
        assert "sk-abc" not in told
        eventually(lambda: session.read().open_calls == ())

    @every_mode
    def test_raise_in_place_of_telling(self, session: govnode.Session, mode: str) -> None:
        tool = Tool(mode)
        with pytest.raises(BaseException) as raised:  # noqa: PT011
            self.driver.run(session, SCRIPT, tool.function, mode, on_denied="raise")
        assert PolicyViolationError in [type(e) for e in causes(raised.value)]
        assert tool.executed == ["ls"]
        assert session.read().open_calls == ()

    @every_mode
    def test_adapter_error_denies(self, session: govnode.Session, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*args: Any, **kwargs: Any) -> Any:
            raise ValueError("it is broken")

        monkeypatch.setattr(govnode.AsyncSession, "begin", broken)
        tool = Tool(mode)
        start = time.monotonic()
        seen = self.driver.run(session, [[("shell", {"command": "ls"})], "done"], tool.function, mode)
        assert time.monotonic() - start < 30  # it does not hang
        assert tool.executed == []
        assert "it is broken" in seen.model_saw[0]
        assert "done" in seen.final

    @every_mode
    def test_no_service(self, mode: str) -> None:
        tool = Tool(mode)
        with govnode.Client("127.0.0.1:9", timeout=1.0) as client:
            session = client.session("s", agent="tester", policy="plain")
            seen = self.driver.run(session, [[("shell", {"command": "ls"})], "done"], tool.function, mode)
        assert tool.executed == []
        assert "Denied by govnode" in seen.model_saw[0]

    @every_mode
    def test_fail_open_leaves_a_trace(
        self, address: testing.Address, session: govnode.Session, mode: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        session.open()
        with Proxy(address) as proxy, govnode.Client(proxy.address, timeout=0.5, fail_open=True) as client:
            proxy.always("refuse")
            tool = Tool(mode)
            open_ = client.session(session.id)
            self.driver.run(open_, [[("shell", {"command": "ls"})], "done"], tool.function, mode)
            assert tool.executed == ["ls"]
            assert "fail_open" in caplog.text
            proxy.always("")
            eventually(lambda: session.read().executions == 1)

    @every_mode
    def test_slot_comes_back_after_an_error(self, session: govnode.Session, mode: str) -> None:
        def shell(command: str) -> str:
            """Fails."""
            raise ValueError("no such file")

        with contextlib.suppress(Exception):  # some frameworks end the run, some tell the model
            self.driver.run(session, [[("shell", {"command": "ls"})], "done"], shell, mode)
        eventually(lambda: session.read().open_calls == ())
        assert session.read().executions == 1

    def test_slot_comes_back_after_cancellation(self, session: govnode.Session, loop_mode: str) -> None:
        async def scenario() -> None:
            started = asyncio.Event()

            async def shell(command: str) -> str:
                """Never ends."""
                started.set()
                await asyncio.Event().wait()
                return ""

            run = asyncio.create_task(
                self.driver.ago(session, [[("shell", {"command": "ls"})], "done"], shell, loop_mode)
            )
            await asyncio.wait_for(started.wait(), 30)
            assert len(session.read().open_calls) == 1
            run.cancel()
            with contextlib.suppress(BaseException):
                await run
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())

    def test_cancelled_thread_keeps_its_slot_until_it_ends(self, session: govnode.Session, loop_mode: str) -> None:
        if not self.driver.threads:
            pytest.skip("synchronous tools of this framework do not run in threads")
        started, go_on = threading.Event(), threading.Event()

        def shell(command: str) -> str:
            """Runs on."""
            started.set()
            assert go_on.wait(60)
            return ""

        async def scenario() -> None:
            run = asyncio.create_task(
                self.driver.ago(session, [[("shell", {"command": "ls"})], "done"], shell, loop_mode)
            )
            assert await asyncio.to_thread(started.wait, 30)
            run.cancel()
            with contextlib.suppress(BaseException):
                await asyncio.wait_for(asyncio.shield(run), 1)
            await asyncio.to_thread(flush, session)
            assert len(session.read().open_calls) == 1
            go_on.set()
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())

    @every_mode
    def test_lost_answer_is_not_counted_twice(
        self, address: testing.Address, session: govnode.Session, mode: str
    ) -> None:
        session.open()
        with Proxy(address) as proxy, govnode.Client(proxy.address) as client:
            lost: list[str] = []

            def fault(method: str, body: bytes) -> str:
                if method in ("BatchCalls", "BeginCall", "EndCall") and len(lost) < 2:
                    lost.append(method)
                    return "lose" if len(lost) == 1 else ""
                return ""

            proxy.fault = fault
            tool = Tool(mode)
            script = [[("shell", {"command": "ls"})], "done"]
            self.driver.run(client.session(session.id), script, tool.function, mode)
        assert lost
        assert tool.executed == ["ls"]
        info = session.read()
        assert (info.attempts, info.executions, info.open_calls) == (1, 1, ())

    @every_mode
    def test_same_ids_in_another_run_are_other_calls(self, session: govnode.Session, mode: str) -> None:
        tool = Tool(mode)
        for _ in range(2):
            self.driver.run(session, [[("shell", {"command": "ls"})], "done"], tool.function, mode)
        assert session.read().executions == 2

    @every_mode
    def test_approval_from_another_process(
        self, client: govnode.Client, address: testing.Address, mode: str, tmp_path: Path
    ) -> None:
        client.put_policy(
            "name: asks\nallowed_tools: [shell]\nrequire_human_approval: true\napproval: {timeout: 60s}\n"
        )
        session = client.session(agent="tester", policy="asks")
        tool = Tool(mode)
        script = [[("shell", {"command": "ls"})], "done"]
        seen = self.driver.run(session, script, tool.function, mode)
        assert tool.executed == []
        approval = client.list_approvals(state="pending", session_id=session.id)[0]
        assert approval.id in seen.model_saw[0]

        session = client.session(agent="tester", policy="asks")
        path = tmp_path / "approve.py"
        path.write_text(APPROVE)
        with subprocess.Popen([sys.executable, str(path), address, session.id]) as approver:
            seen = self.driver.run(session, script, tool.function, mode, approval_wait=60)
            assert approver.wait(30) == 0
        assert tool.executed == ["ls"]
        assert "ran ls" in seen.model_saw[0]

    @every_mode
    def test_kill_ends_the_run(self, client: govnode.Client, session: govnode.Session, mode: str) -> None:
        tool = Tool("sync")
        run = tool.function

        def shell(command: str) -> str:
            """Kills its session the second time."""
            if len(tool.executed) == 1:
                client.signal("KILL", session_id=session.id, reason="enough")
            return str(run(command))

        script: Script = [[("shell", {"command": f"ls {i}"})] for i in range(8)]
        ended: Any = None
        try:
            ended = self.driver.run(session, [*script, "done"], shell, mode)
        except BaseException as e:
            ended = e
            assert Killed in [type(c) for c in causes(e)]  # noqa: PT017
        else:
            assert "done" not in ended.final
        assert len(tool.executed) == 2

    def test_killed_process_gives_its_slot_back(
        self, client: govnode.Client, address: testing.Address, tmp_path: Path
    ) -> None:
        client.put_policy("name: mortal\nmax_concurrent: 2\nbackpressure_threshold: 2\n")
        started = tmp_path / "started"
        with self.child(MORTAL, address.all[-1], started, self.driver.modes[-1]) as child:
            try:
                eventually(lambda: started.exists() or child.poll() is not None, 120)
                if child.poll() is not None:
                    pytest.fail(str(child.communicate()[1]))
                assert client.get_pool("policy/mortal").in_use == 1
            finally:
                child.kill()  # whatever was found: its tool never ends
            child.wait()  # its output may be held open longer, by a process that it had started
        eventually(lambda: client.get_pool("policy/mortal").in_use == 0)

    def child(self, script: str, address: str, path: Path, mode: str) -> subprocess.Popen[str]:
        """Start a process that runs an agent of this driver."""
        module = sys.modules[type(self).__module__]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [sys.executable, "-c", script, str(module.__file__), address, str(path), mode]
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def test_limit_holds_across_processes(
        self, client: govnode.Client, address: testing.Address, tmp_path: Path
    ) -> None:
        client.put_policy(
            "name: two-at-once\nmax_concurrent: 2\nmax_tool_calls: 1000\nmax_attempts: 1000\n"
            "backpressure_threshold: 2\n"
        )
        trace = tmp_path / "trace"
        modes = (self.driver.modes[0], self.driver.modes[-1])
        nodes = (address.all[-1], address.all[len(address.all) // 2])  # of three the third and the second
        children = [self.child(CHILD, node, trace, mode) for node, mode in zip(nodes, modes, strict=True)]
        for child in children:
            _, errors = child.communicate(timeout=120)
            assert child.returncode == 0, errors
        running = most = 0
        lines = trace.read_text().split()
        for line in lines:
            running += 1 if line == "+" else -1
            most = max(most, running)
        assert lines.count("+") == lines.count("-") == 12
        assert most <= 2
        assert client.get_pool("policy/two-at-once").in_use == 0


def flush(session: govnode.Session) -> None:
    """Wait until all is done that was asked for behind the callers of a session's client."""
    done = threading.Event()
    session._core._core.live().keeper.later(lambda _: done.set(), 30)  # after what was there before
    assert done.wait(30)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and what it came from."""
    left = [error]
    while left:
        e = left.pop()
        yield e
        left += [c for c in (e.__cause__, e.__context__) if c is not None]
        left += getattr(e, "exceptions", ())


APPROVE = """
import sys, time, govnode
with govnode.Client(sys.argv[1]) as client:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        for approval in client.list_approvals(state="pending", session_id=sys.argv[2]):
            client.approve(approval.id, approver="carla")
            sys.exit(0)
        time.sleep(0.02)
sys.exit(1)
"""

LOAD = """
import importlib.util, os, sys, time
spec = importlib.util.spec_from_file_location("child", sys.argv[1])
module = sys.modules["child"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import govnode

"""

# One of two processes: an agent that makes six calls at once, each of which notes when it begins and ends.
CHILD = (
    LOAD
    + """
trace = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def shell(command: str) -> str:
    "Notes when it begins and ends."
    os.write(trace, b"+\\n")
    time.sleep(0.03)
    os.write(trace, b"-\\n")
    return "ok"

with govnode.Client(sys.argv[2]) as client:
    session = client.session(agent="tester", policy="two-at-once")
    script = [[("shell", {"command": str(i)}) for i in range(6)], "done"]
    seen = module.DRIVER.run(session, script, shell, sys.argv[4], wait=60)
    assert all("ok" in s for s in seen.model_saw), seen.model_saw
"""
)

# One whose tool never ends.
MORTAL = (
    LOAD
    + """
def shell(command: str) -> str:
    "Notes that it has begun."
    open(sys.argv[3], "w").close()
    while True:
        time.sleep(1)

with govnode.Client(sys.argv[2]) as client:
    session = client.session(agent="tester", policy="mortal")
    module.DRIVER.run(session, [[("shell", {"command": "ls"})], "done"], shell, sys.argv[4], options={"ttl": 1.0})
"""
)
