"""The unmodified SDK of Edictum against three nodes: by its own server classes, and by GovnodeStorage."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import govnode
from govnode import testing
from govnode.edictum import GovnodeStorage

pytest.importorskip("edictum", reason="Edictum is not installed")

from edictum import Edictum, EdictumDenied, OperationLimits
from edictum.server import EdictumServerClient, ServerApprovalBackend, ServerAuditSink, ServerBackend
from edictum.storage import MemoryBackend

AGENT, OPERATOR = "key-of-an-agent", "key-of-an-operator"


class Nodes(NamedTuple):
    address: testing.Address
    client: govnode.Client

    def sdk(self, node: int = 0, key: str = AGENT, agent: str = "writer") -> Any:
        return EdictumServerClient(f"http://{self.address.all[node]}", key, agent_id=agent)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    keys = tmp_path_factory.mktemp("keys") / "keys.yaml"
    hashes = {
        role: hashlib.sha256(key.encode()).hexdigest() for role, key in (("agent", AGENT), ("operator", OPERATOR))
    }
    keys.write_text(json.dumps({"keys": [{"name": r, "role": r, "hash": f"sha256:{h}"} for r, h in hashes.items()]}))
    with (
        testing.node(3, options=("--edictum-keys", str(keys))) as address,
        govnode.Client(",".join(address.all)) as client,
    ):
        yield Nodes(address, client)


@contextlib.asynccontextmanager
async def backends(nodes: Nodes, kind: str) -> AsyncIterator[list[Any]]:
    """One backend for each node."""
    if kind == "govnode":
        yield [GovnodeStorage(nodes.client) for _ in range(3)]
        return
    clients = [nodes.sdk(i) for i in range(3)]
    try:
        yield [ServerBackend(c) for c in clients]
    finally:
        for c in clients:
            await c.close()


kinds = pytest.mark.parametrize("kind", ["server", "govnode"])


@kinds
def test_as_the_backend_in_memory(nodes: Nodes, kind: str) -> None:
    """Whatever is done, in any order and on whichever node, gives what the SDK's own backend gives."""
    script: list[tuple[str, tuple[Any, ...]]] = []
    for key in ("s:run:attempts", "s:run:tool:fs/read", "s:run:tool:a b#c?", "s:run:tool:ünïcode%41"):
        if kind == "server" and ("?" in key or "#" in key or "%" in key):
            continue  # the SDK does not escape these: they are refused, see below
        script += [
            ("get", (key,)),
            ("increment", (key,)),
            ("increment", (key, 2)),
            ("increment", (key, 0.5)),
            ("get", (key,)),
            ("batch_get", ([key, "s:run:none"],)),
            ("set", (key + ":w", "text")),
            ("get", (key + ":w",)),
            ("batch_get", ([key, key + ":w"],)),
            ("delete", (key,)),
            ("delete", (key,)),
            ("get", (key,)),
        ]

    async def scenario() -> None:
        memory: Any = MemoryBackend()
        async with backends(nodes, kind) as all_of_them:
            for i, (method, args) in enumerate(script):
                args = tuple(f"{kind}:{a}" if isinstance(a, str) and j == 0 else a for j, a in enumerate(args))
                wanted = await getattr(memory, method)(*args)
                got = await getattr(all_of_them[i % 3], method)(*args)
                if method != "batch_get" or wanted is not None:
                    assert got == wanted, (method, args)

    asyncio.run(scenario())


@pytest.mark.parametrize("tool", ["a?b", "a#b", "%41"])
def test_names_that_the_sdk_does_not_escape_are_refused(nodes: Nodes, tool: str) -> None:
    """One key would be counted and another one read."""

    async def scenario() -> None:
        async with backends(nodes, "server") as (backend, *_):
            with pytest.raises(Exception, match="HTTP 40"):
                await backend.increment(f"s:x:tool:{tool}")

    asyncio.run(scenario())


@kinds
def test_increments_at_once_count_once_each(nodes: Nodes, kind: str) -> None:
    async def scenario() -> list[float]:
        async with backends(nodes, kind) as all_of_them:
            key = f"once:{kind}"
            return list(await asyncio.gather(*(all_of_them[i % 3].increment(key) for i in range(150))))

    assert sorted(asyncio.run(scenario())) == list(range(1, 151))


WORKER = """
import asyncio, sys, time
from edictum import Edictum, EdictumDenied, OperationLimits
from edictum.server import EdictumServerClient, ServerBackend

address, run, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])

async def main():
    async with EdictumServerClient(f"http://{address}", "key-of-an-agent", agent_id="worker") as client:
        guard = Edictum(limits=OperationLimits(max_tool_calls=limit), backend=ServerBackend(client))
        made = 0
        while True:
            try:
                await guard.run("ls", {}, lambda: print("ran", flush=True), session_id=run)
            except EdictumDenied:
                return
            await asyncio.sleep(float(sys.argv[4]))

asyncio.run(main())
"""


@pytest.mark.parametrize("killing", [False, True])
def test_limits_hold_across_processes(nodes: Nodes, tmp_path: Path, killing: bool) -> None:
    """Up to the calls in flight, one for each process: the SDK counts after the tool. A leader may die meanwhile."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    run, limit, pause = f"limits-{killing}", 40, "0.05" if killing else "0"

    def start(node: int) -> subprocess.Popen[str]:
        command = [sys.executable, str(script), nodes.address.all[node], run, str(limit), pause]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    leader = next(i for i, a in enumerate(nodes.address.all) if leads(nodes, a))
    others = [i for i in range(3) if i != leader]
    workers = [start(others[0]), start(others[1])]
    if killing:
        key = f"s:{run}:execs"
        eventually(lambda: float(getattr(nodes.client.get(key), "value", 0)) >= 5)
        os.kill(pid_of(nodes, leader), signal.SIGKILL)
    ran = 0
    for worker in workers:
        out, err = worker.communicate(timeout=60)
        ran += out.count("ran")
        assert worker.returncode == 0, err[-2000:]
    assert limit <= ran <= limit + 1
    execs = nodes.client.get(f"s:{run}:execs")
    assert execs is not None
    assert float(execs.value) == ran  # none is counted twice


def leads(nodes: Nodes, address: str) -> bool:
    with govnode.Client(address) as client:
        status = client.status()
        return status.leader == status.node


def pid_of(nodes: Nodes, index: int) -> int:
    return nodes.address.pids[index]


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.01)


@pytest.mark.parametrize("yes", [True, False])
def test_an_approval_is_decided_elsewhere(nodes: Nodes, yes: bool) -> None:
    rules = """
apiVersion: edictum/v1
kind: Ruleset
metadata: {name: asks}
defaults: {mode: enforce}
rules:
  - id: deploys
    type: pre
    tool: deploy
    when: {"args.to": {equals: prod}}
    then: {action: ask, message: "may {args.to} be deployed to?", timeout: 30}
"""

    async def scenario() -> tuple[list[str], dict[str, Any]]:
        asks, decides = nodes.sdk(0), nodes.sdk(2, OPERATOR, "desk")
        ran: list[str] = []
        guard = Edictum.from_yaml_string(
            rules, backend=ServerBackend(asks), approval_backend=ServerApprovalBackend(asks, poll_interval=0.05)
        )

        async def decide() -> dict[str, Any]:
            while True:
                pending = (await decides.get("/v1/approvals", status="pending"))["approvals"]
                if pending:
                    answer = {"approved": yes, "reason": "as I say"}
                    return dict(await decides.put(f"/v1/approvals/{pending[0]['id']}", answer))
                await asyncio.sleep(0.05)

        run = guard.run("deploy", {"to": "prod"}, lambda to: ran.append(to), session_id="asks")
        result, decided = await asyncio.gather(run, decide(), return_exceptions=True)
        assert isinstance(result, EdictumDenied) is not yes
        await asks.close()
        await decides.close()
        assert isinstance(decided, dict)
        return ran, decided

    ran, decided = asyncio.run(scenario())
    assert ran == (["prod"] if yes else [])
    assert (decided["decided_by"], decided["message"]) == ("operator", "may prod be deployed to?")


def test_events_are_kept_once(nodes: Nodes) -> None:
    async def scenario() -> list[dict[str, Any]]:
        tells, looks = nodes.sdk(0), nodes.sdk(1, OPERATOR, "desk")
        sink = ServerAuditSink(tells, batch_size=1)
        sent: list[dict[str, Any]] = []
        post = tells.post

        async def twice(path: str, body: dict[str, Any]) -> Any:
            """As when an answer is lost: the SDK sends again what it has."""
            if path == "/v1/events":
                sent.extend(body["events"])
                await post(path, body)
            return await post(path, body)

        tells.post = twice
        guard = Edictum(limits=OperationLimits(), backend=ServerBackend(tells), audit_sink=sink)
        for i in range(3):
            await guard.run("ls", {"n": i}, lambda n: n, session_id="told")
        await sink.close()
        kept = (await looks.get("/v1/events", session_id="told"))["events"]
        await tells.close()
        await looks.close()
        assert len(sent) >= 6  # each call is allowed and executed
        assert kept == sent
        return list(kept)

    assert {e["action"] for e in asyncio.run(scenario())} >= {"call_allowed", "call_executed"}


RULESET = """
apiVersion: edictum/v1
kind: Ruleset
metadata: {{name: shells}}
defaults: {{mode: enforce}}
rules:
  - id: stop
    type: pre
    tool: shell
    when: {{args.command: {{contains: "{word}"}}}}
    then: {{action: block, message: "no {word}"}}
"""


async def put(nodes: Nodes, name: str, word: str, node: int = 2) -> None:
    desk = nodes.sdk(node, OPERATOR, "desk")
    await desk.put(f"/v1/rulesets/{name}", {"yaml": RULESET.format(word=word)})
    await desk.close()


async def blocks(guard: Any, command: str) -> bool:
    try:
        await guard.run("shell", {"command": command}, lambda command: command, session_id="served")
    except EdictumDenied:
        return True
    return False


async def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not await condition():
        assert time.monotonic() < end, "it did not come to be"
        await asyncio.sleep(0.05)


def test_a_ruleset_is_served_and_changed_while_it_runs(nodes: Nodes) -> None:
    async def scenario() -> None:
        await put(nodes, "served", "rm")
        url = f"http://{nodes.address.all[0]}"
        guard = await Edictum.from_server(url, AGENT, "writer", bundle_name="served")
        try:
            assert await blocks(guard, "rm x")
            assert not await blocks(guard, "dd x")
            await put(nodes, "served", "dd")  # at another node
            await until(lambda: blocks(guard, "dd x"))
            assert not await blocks(guard, "rm x")
        finally:
            await guard.close()

    asyncio.run(scenario())


def test_an_assigned_ruleset(nodes: Nodes) -> None:
    async def scenario() -> None:
        await put(nodes, "first", "rm")
        await put(nodes, "second", "dd")
        desk = nodes.sdk(1, OPERATOR, "desk")
        await desk.put("/v1/agents/robot/ruleset", {"name": "first"})
        guard = await Edictum.from_server(f"http://{nodes.address.all[0]}", AGENT, "robot")
        try:
            assert await blocks(guard, "rm x")
            await desk.put("/v1/agents/robot/ruleset", {"name": "second"})
            await until(lambda: blocks(guard, "dd x"))
        finally:
            await guard.close()
            await desk.close()

    asyncio.run(scenario())


def test_a_ruleset_that_is_wrong_changes_nothing(nodes: Nodes) -> None:
    async def scenario() -> None:
        await put(nodes, "wrong", "rm")
        desk = nodes.sdk(0, OPERATOR, "desk")
        with pytest.raises(Exception, match="HTTP 422") as refused:
            await desk.put("/v1/rulesets/wrong", {"yaml": RULESET.format(word="dd").replace("block", "nope")})
        assert "must be block or ask" in str(refused.value)
        current = await desk.get("/v1/rulesets/wrong/current")
        assert (current["version"], "rm" in current["yaml"]) == (1, True)
        assert current["revision_hash"] == hashlib.sha256(base64.b64decode(current["yaml_bytes"])).hexdigest()
        await desk.close()

    asyncio.run(scenario())


FOLDER = Path(os.environ.get("EDICTUM_FIXTURES", Path(__file__).parents[4] / "shared" / "fixtures" / "edictum"))


def suites(*parts: str) -> list[dict[str, Any]]:
    """The public cases of Edictum. They are not ours to ship."""
    yaml = pytest.importorskip("yaml")
    found = [yaml.safe_load(f.read_text()) for part in parts for f in sorted(FOLDER.glob(f"{part}/*.yaml"))]
    if not found:
        pytest.skip("Edictum's public cases are not here: name their folder with EDICTUM_FIXTURES")
    return found


class Case:
    """One public case, each step of it at the next of three nodes."""

    def __init__(self, clients: list[govnode.Client], case: dict[str, Any]) -> None:
        self.clients, self.case, self.at = clients, case, 0
        self.texts: list[str] = []

    def next(self) -> govnode.Client:
        self.at += 1
        return self.clients[self.at % 3]

    def session(self) -> govnode.Session:
        return self.next().session(self.id)

    def judge(self) -> str:
        yaml, case = pytest.importorskip("yaml"), self.case
        name = f"case-{case['id']}"
        self.next().put_policy(name=name, files={"ruleset.yaml": yaml.safe_dump(case["contract"], sort_keys=False)})
        opened = self.next().session(agent="a", policy=name)
        opened.open()
        self.id = opened.id
        before = case.get("session") or {}
        made = dict(before.get("per_tool") or {})
        made["Other"] = before.get("tool_calls", 0) - sum(made.values())
        made[case["envelope"]["tool_name"]] = made.get(case["envelope"]["tool_name"], 0) + before.get("attempts", 0)
        for tool, count in made.items():
            for _ in range(count):
                if (call := self.session().begin(tool)).admitted:
                    call.end()
        who = dict(case.get("principal") or {})
        who["user_id"] = who.pop("id", who.get("user_id"))
        call = case["envelope"]
        options: dict[str, Any] = {
            "call_id": "case", "wait": 0, "context": {"principal": who, "env": case.get("environment") or {}},
            "metadata": case.get("call_metadata") or {},
        }  # fmt: skip
        said = self.session().begin(call["tool_name"], call.get("arguments") or {}, **options)
        if said.outcome == "APPROVAL_REQUIRED":
            assert said.approval is not None
            self.texts.append(said.reason)
            if case.get("approval_pending"):
                return "denied"
            if case.get("timeout_expired"):
                return "allowed" if "allow" in yaml.safe_dump(case["contract"]) else "denied"
            decide = self.next().deny if case.get("approval_decision") == "rejected" else self.next().approve
            decide(said.approval.id, approver="ann")
            said = self.session().begin(call["tool_name"], call.get("arguments") or {}, **options)
        self.texts.append(f"{said.reason} {said.answer.get('decision', {}).get('category', '')}")
        self.rules = list(said.answer.get("decision", {}).get("rules", ()))
        if not said.admitted:
            return "denied"
        if "result" not in case:
            said.end()
            return "allowed"
        ended = said.end(output=case["result"])
        assert ended is not None
        if ended.review is None:
            return "allowed"
        self.texts += [*ended.review.warnings, *(f.message for f in ended.review.findings), str(ended.review.output)]
        self.rules += [{"observed": r.observed} for r in ended.review.rules]
        if ended.review.suppressed:
            return "denied"
        return "redacted" if ended.review.changed else "allowed" if ended.review.passed else "warned"


def test_public_cases_on_the_nodes(nodes: Nodes) -> None:
    clients = [govnode.Client(a) for a in nodes.address.all]
    judged = 0
    same = {"blocked": "denied", "block": "denied", "warn": "warned", "redact": "redacted"}
    for case in (c for s in suites("behavioral", "adversarial") for c in s["fixtures"]):
        if case["id"] == "adv-inject-002":
            continue  # it contradicts itself
        run = Case(clients, case)
        if case["id"] in ("adv-tool-001", "adv-tool-002"):  # a Greek letter that passes for a Latin one, and a NUL:
            with pytest.raises(govnode.Rejected, match=r"invalid_argument: .*\.tool: "):  # no call has such a tool here
                run.judge()
            continue
        verdict, want = run.judge(), case["expected"]
        assert verdict == same.get(want["verdict"], want["verdict"]), (case["id"], run.texts)
        if "message_contains" in want:
            assert want["message_contains"].lower() in " ".join(run.texts).lower(), case["id"]
        if want.get("audit_action") == "observed":
            assert any(r.get("observed") for r in run.rules), case["id"]
        judged += 1
    assert judged == 119
    for c in clients:
        c.close()


class Walk:
    """A case of a workflow, each step of it at the next of three nodes."""

    def __init__(self, clients: list[govnode.Client], name: str, definition: str, initial: dict[str, Any]) -> None:
        self.clients, self.at = clients, 0
        self.next().put_policy(name=name, files={"workflow.yaml": definition})
        opened = self.next().session(agent="a", policy=name)
        opened.open()
        self.id, self.n = opened.id, 0
        self.key = f"s:{self.id}:workflow:{name}:state"
        self.next().set(self.key, json.dumps({**initial, "session_id": self.id}))

    def next(self) -> govnode.Client:
        self.at += 1
        return self.clients[self.at % 3]

    def state(self) -> dict[str, Any]:
        found = self.next().get(self.key)
        assert found is not None
        return dict(json.loads(str(found.value)))

    def take(self, step: dict[str, Any]) -> None:
        want, call, self.n = step["expect"], step["call"], self.n + 1
        outcomes = list(step.get("approval_outcomes") or ())
        while True:
            said = self.next().session(self.id).begin(call["tool"], call["args"], call_id=f"c{self.n}", wait=0)
            if said.outcome != "APPROVAL_REQUIRED" or not outcomes:
                break
            assert said.approval is not None
            decide = self.next().approve if outcomes.pop(0) == "approved" else self.next().deny
            decide(said.approval.id, approver="ann")
        decision = {"ADMITTED": "allow", "APPROVAL_REQUIRED": "pause"}.get(said.outcome, "deny")
        assert decision == want["decision"].replace("block", "deny"), (step["id"], said.reason)
        assert want.get("message_contains", "") in said.reason, step["id"]
        if "approval_requested_for" in want:
            assert said.matched_rule == want["approval_requested_for"]
        if said.admitted:
            status = {"success": "succeeded", "error": "failed"}.get(step["execution"], "cancelled")
            said.end(status, output=step.get("mcp_result"))
        self.compare(step["id"], want)

    def compare(self, step: str, want: dict[str, Any]) -> None:
        is_now = self.state()
        for name in ("active_stage", "completed_stages", "approvals"):
            assert is_now[name] == want[name], (step, name)
        for name, value in want["evidence"].items():
            if name == "stage_calls":  # a text that reads as a map is the text
                value = {k: [as_text(t) for t in v] for k, v in value.items()}
            assert is_now["evidence"][name] == value, (step, name)


def as_text(call: Any) -> str:
    return call if isinstance(call, str) else ": ".join(next(iter(call.items())))


def test_public_workflows_on_the_nodes(nodes: Nodes) -> None:
    yaml = pytest.importorskip("yaml")
    clients = [govnode.Client(a) for a in nodes.address.all]
    walked = 0
    for suite in suites("workflow*"):
        for case in suite["fixtures"]:
            if "workflow" not in case:
                continue  # of rulesets, which a test of the engine has
            definition = suite["workflows"][case["workflow"]]
            walk = Walk(clients, case["workflow"], yaml.safe_dump(definition, sort_keys=False), case["initial_state"])
            for step in case["steps"]:
                if "call" in step:
                    walk.take(step)
                    continue
                to = ("reset", step["reset_to"]) if "reset_to" in step else ("set", step["set_stage_to"])
                binary = os.environ["GOVNODE_BINARY"]
                address = nodes.address.all[walk.at % 3]
                subprocess.run(
                    [binary, "edictum", "workflow", to[0], walk.id, to[1], "--addr", address],
                    check=True,
                    capture_output=True,
                )
                walk.compare(step["id"], step["expect"])
            walked += 1
    assert walked >= 37
    for c in clients:
        c.close()


def test_the_page(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page prints is run as it stands."""
    page = Path(__file__).parents[3] / "docs" / "python" / "edictum.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.setenv("GOVNODE_ADDRESSES", nodes.address)
    names: dict[str, Any] = {"address": nodes.address, "key": AGENT, "__name__": "page"}
    for block in blocks:
        exec(compile(block, page.name, "exec", dont_inherit=True), names)
    assert (names["result"], names["second"]) == ("found hello", "found more")
    with pytest.raises(EdictumDenied):
        asyncio.run(names["guard"].run("search", {"q": "x"}, lambda q: q, session_id="page-1"))
    names["client"].close()


def test_govnode_storage_on_other_loops_and_threads(nodes: Nodes) -> None:
    storage = GovnodeStorage(nodes.client, prefix="apart:")
    threads = [threading.Thread(target=lambda: asyncio.run(storage.increment("n"))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert asyncio.run(storage.get("n")) == "8"
    asyncio.run(storage.set("t", "text"))
    with pytest.raises(ValueError, match="holds a text"):
        asyncio.run(storage.increment("t"))
