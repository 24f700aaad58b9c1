"""What an adapter accepts holds at the service, for all processes, and nothing is allowed without it."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import eventually
from kernels import Kernel, Present

import govnode
from govnode import guardrail, testing
from govnode.integration import GovernancePolicy, PolicyConfig, PolicyViolationError, ToolCallRequest
from govnode.integration._policies import PolicyConflict

_numbers = itertools.count()


def named(**settings: Any) -> GovernancePolicy:
    return GovernancePolicy(name=f"adapter-{next(_numbers)}", **settings)


def tool(name: str = "t", call_id: str = "", **arguments: Any) -> ToolCallRequest:
    return ToolCallRequest(name, arguments, call_id)


def config(**settings: Any) -> PolicyConfig:
    """Return settings of their own: those that are the same share their name, and so their slots."""
    return PolicyConfig(timeout_seconds=1000 + next(_numbers), **settings)


# What PolicyConfig and limits say.


@pytest.mark.parametrize(
    ("settings", "given", "kind", "category"),
    [
        ({"blocked_tools": ["shell", "yes"]}, tool("shell"), "", "policy_rule"),
        ({"blocked_tools": ["shell", "yes"]}, tool("yes"), "", "policy_rule"),
        ({}, tool("shell"), "agent", "error"),
        ({"max_agent_calls": 0}, "x", "agent", "kind_limit"),
        ({"blocked_tools": ["shell"]}, tool("shellfish"), "", ""),
        ({"blocked_tools": ["shell"], "sensitive_tools": ["shell"]}, tool("shell"), "", "policy_rule"),
        ({"allowed_tools": ["read"]}, tool("shell"), "", "not_allowed_tool"),
        ({"sensitive_tools": ["mail"]}, tool("mail"), "", "human_approval_required"),
        ({"sensitive_tools": ["mail"]}, tool("read"), "", ""),
        ({"require_human_approval": True}, tool("read"), "", "human_approval_required"),
        ({"require_human_approval": True, "sensitive_tools": ["mail"]}, tool("read"), "", "human_approval_required"),
        ({}, tool(text="jane@example.org"), "", "scan"),
        ({}, tool(deep=[{"x": "password=hunter2"}]), "", "scan"),
        ({}, "call 078-05-1120", "", "scan"),
        ({}, "word " * 8000 + "jane@example.org " + "word " * 8000, "", "scan"),
        ({"pii_detection": False}, tool(text="jane@example.org password=hunter2"), "", ""),
        ({"blocked_patterns": ["zap"]}, tool(text="ZAP"), "", "blocked_pattern_input"),
        ({"max_agent_calls": 0}, tool("x"), "", ""),
        ({"max_tool_calls": 0}, tool("x"), "", "max_tool_calls"),
    ],
)
def test_config_holds(client: govnode.Client, settings: dict[str, Any], given: Any, kind: str, category: str) -> None:
    k = Kernel(config(**settings), client=client, wait=0)
    ctx = k.create_context("a")
    found = k.pre_execute_check(ctx, given, kind=kind)
    assert found.category == category, found
    assert found.allowed is (category == "")


def test_config_scans_outputs(client: govnode.Client) -> None:
    for on, allowed in ((True, False), (False, True)):
        k = Kernel(config(pii_detection=on), client=client, wait=0)
        ctx = k.create_context("a")
        k.pre_execute_check(ctx, tool()).require()
        found = k.post_execute_check(ctx, "write to jane@example.org")
        assert (found.allowed, ctx.call_count) == (allowed, 1)
        assert "jane" not in str(k.audit_log)


@pytest.mark.parametrize(
    ("limits", "kind", "category"),
    [
        ({"max_attempts": 2}, "tool", "max_attempts"),
        ({"max_calls_per_tool": {"t": 2}}, "tool", "max_calls_per_tool"),
        ({"max_model_calls": 2}, "model", "kind_limit"),
        ({"max_agent_calls": 2}, "agent", "kind_limit"),
        ({"max_handoffs": 2}, "handoff", "kind_limit"),
        ({"max_consecutive_failures": 2}, "tool", "max_consecutive_failures"),
        ({"rate_limits": [{"name": "r", "limit": 2, "per": "1h"}]}, "tool", "rate_limited"),
    ],
)
def test_limits_hold(client: govnode.Client, limits: dict[str, Any], kind: str, category: str) -> None:
    k = Kernel(named(), client=client, wait=0, limits=limits)
    ctx = k.create_context("a")
    for n in range(2):
        k.pre_execute_check(ctx, tool(n=n) if kind == "tool" else "x", kind=kind).require()
        k.post_execute_check(ctx, None, status="failed").require()
    found = k.pre_execute_check(ctx, tool() if kind == "tool" else "x", kind=kind)
    assert (found.allowed, found.category) == (False, category)
    if category == "rate_limited":
        assert found.retry_after > 3000


def test_limits_that_the_service_refuses(client: govnode.Client) -> None:
    k = Kernel(named(), client=client, wait=0, limits={"max_handoffs": "many"})
    found = k.pre_execute_check(k.create_context("a"), "hi")
    assert (found.allowed, found.category) == (False, "error")
    assert "max_handoffs" in (found.reason or "")


def test_budget_holds(client: govnode.Client) -> None:
    k = Kernel(config(max_budget=1.0), client=client, wait=0, cost=lambda r: r.metadata.get("cost", 0.4))
    ctx, other = k.create_context("a"), k.create_context("b")
    k.pre_execute_check(ctx, tool()).require()
    k.post_execute_check(ctx, None, cost=0.1).require()
    for _ in range(2):
        k.pre_execute_check(ctx, tool()).require()
        k.post_execute_check(ctx, None).require()
    assert k.pre_execute_check(ctx, tool()).category == "budget_exceeded"  # 0.1 is left
    assert k.pre_execute_check(other, tool()).allowed  # which is another session
    for cost in (-1, float("nan"), "much", None):
        found = k.pre_execute_check(other, ToolCallRequest("t", {}, metadata={"cost": cost}))
        assert (found.allowed, found.category) == (False, "error")
    for ended in (ctx, other):
        k.end_context(ended)
    assert client.get_session(ctx.session_id).state == "CLOSED"
    assert [b.budget for b in client.list_budgets() if ctx.session_id in b.budget] == []


def test_what_is_said_of_an_end_is_checked_first(client: govnode.Client) -> None:
    k = Kernel(config(max_budget=1.0), client=client, cost=0.1)
    plain = Kernel(named(), client=client)
    for given, says in ((k, {"cost": -1}), (k, {"cost": float("nan")}), (k, {"tokens": -1}), (plain, {"cost": 0.1})):
        ctx = given.create_context("a")
        given.pre_execute_check(ctx, tool()).require()
        with pytest.raises(ValueError, match=next(iter(says))):
            given.post_execute_check(ctx, "x", **says)
        assert given.post_execute_check(ctx, "x").allowed
        given.end_context(ctx)
    assert k.pre_execute_check(k.create_context("a"), "hi", tokens=-1).category == "error"


def test_contexts_keep_their_config(client: govnode.Client) -> None:
    given = config(blocked_tools=["shell"], max_budget=1.0)
    k = Kernel(given, client=client, cost=2.0)
    ctx = k.create_context("a")
    given.pii_detection, given.max_budget = False, 100.0
    given.blocked_tools.clear()
    assert k.pre_execute_check(ctx, tool(text="jane@example.org")).category == "scan"
    assert k.pre_execute_check(ctx, tool("shell")).category == "policy_rule"
    assert k.pre_execute_check(ctx, tool()).category == "budget_exceeded"
    k.end_context(ctx)


def test_changes_hold_or_are_refused(client: govnode.Client) -> None:
    k = Kernel(config(), client=client, wait=0)
    assert k.config is not None
    k.config.max_tool_calls = 0
    assert k.pre_execute_check(k.create_context("a"), tool()).category == "max_tool_calls"
    k.config.blocked_tools = "shell"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="blocked_tools"):
        k.create_context("a")
    k.config.blocked_tools = ["shell"]
    k.policy.max_tool_calls = 5
    with pytest.raises(ValueError, match="both changed"):
        k.create_context("a")
    k.config.max_tool_calls = 50
    assert k.pre_execute_check(k.create_context("a"), tool("shell")).category == "policy_rule"
    k = Kernel("on-the-service", client=client)
    k.policy = named(max_tool_calls=0)
    with pytest.raises(ValueError, match="on the service"):
        k.create_context("a")


def test_max_tokens_holds(client: govnode.Client) -> None:
    k = Kernel(named(max_tokens=10), client=client, wait=0)
    ctx = k.create_context("a")
    assert k.pre_execute_check(ctx, "hi", tokens=10).allowed
    assert k.pre_execute_check(ctx, "hi", tokens=11).category == "token_limit"


# The policy on the service.


def test_name_of_a_policy_on_the_service(client: govnode.Client) -> None:
    client.put_policy("name: careful\nmax_tool_calls: 1\ntimeout_seconds: 7\n")
    k = Kernel("careful", client=client, wait=0)
    ctx = k.create_context("a")
    k.pre_execute_check(ctx, "hi").require()
    assert ctx._max_hold == 7.0
    assert k.pre_execute_check(ctx, "hi").category == "max_tool_calls"
    k = Kernel("there is none", client=client)
    assert k.pre_execute_check(k.create_context("a"), "hi").category == "error"


def test_contexts_keep_their_policy(client: govnode.Client) -> None:
    policy = named(max_tool_calls=1)
    k = Kernel(policy, client=client, wait=0)
    ctx = k.create_context("a")
    policy.max_tool_calls = ctx.policy.max_tool_calls = 100
    k.policy = GovernancePolicy(name="later", max_tool_calls=100)
    k.pre_execute_check(ctx, "hi").require()
    assert not k.pre_execute_check(ctx, "hi").allowed


def test_one_name_holds_one_content(client: govnode.Client) -> None:
    first, second = named(), named(max_tool_calls=3)
    second.name = first.name
    Kernel(first, client=client).pre_execute_check(Kernel(first).create_context("a"), "hi")
    for policy, other in ((first, False), (second, True)):
        k = Kernel(policy, client=client)
        ctx = k.create_context("a")
        if not other:
            assert k.pre_execute_check(ctx, "hi").allowed
            continue
        for _ in range(2):
            with pytest.raises(PolicyConflict, match=first.name):
                k.pre_execute_check(ctx, "hi")
        k = Kernel(policy, client=client, replace=True)
        assert k.pre_execute_check(k.create_context("a"), "hi").allowed


def test_digest_is_that_of_the_service(client: govnode.Client) -> None:
    k = Kernel(config(blocked_tools=["a"], blocked_patterns=["é" * 100]), client=client, cost=None)
    ctx = k.create_context("a")
    assert k.pre_execute_check(ctx, "hi").allowed
    assert ctx._tree is not None
    assert client.get_policy(ctx._tree.name).digest == ctx._tree.digest


def test_policies_that_race(client: govnode.Client) -> None:
    kernels = [Kernel(named(max_tool_calls=n), client=client) for n in (1, 2, 1, 2)]
    for k in kernels:
        k.policy.name = "raced"
    start, found = threading.Barrier(4), queue.Queue[Any]()

    def check(k: Kernel) -> None:
        ctx = k.create_context("a")
        start.wait()
        try:
            found.put(k.pre_execute_check(ctx, "hi").allowed)
        except PolicyConflict:  # it came so late that it saw the other
            found.put("conflict")

    threads = [threading.Thread(target=check, args=(k,)) for k in kernels]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert {found.get_nowait() for _ in threads} <= {True, "conflict"}
    digests = {tree.digest for k in kernels if (tree := k.contexts["a"]._tree) is not None}
    assert client.get_policy("raced").digest in digests


@pytest.mark.parametrize("replace", [False, True])
def test_policies_that_race_without_a_conflict(client: govnode.Client, replace: bool) -> None:
    name = named().name
    policies = [GovernancePolicy(name=name, max_tool_calls=2 + (n % 2 if replace else 0)) for n in range(6)]
    kernels = [Kernel(p, client=client, replace=replace) for p in policies]
    start, found = threading.Barrier(6), queue.Queue[bool]()

    def check(k: Kernel) -> None:
        ctx = k.create_context("a")
        start.wait()
        found.put(k.pre_execute_check(ctx, tool()).allowed)

    threads = [threading.Thread(target=check, args=(k,)) for k in kernels]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [found.get_nowait() for _ in threads] == [True] * 6
    digests = {tree.digest for k in kernels if (tree := k.contexts["a"]._tree) is not None}
    assert client.get_policy(name).digest in digests
    for k in kernels:  # each session has the limits that it was made with
        limit = k.policy.max_tool_calls
        ctx = k.contexts["a"]
        k.post_execute_check(ctx, None).require()
        admitted = 1
        while k.pre_execute_check(ctx, tool()).allowed:
            k.post_execute_check(ctx, None).require()
            admitted += 1
        assert admitted == limit


def test_a_context_has_one_session(client: govnode.Client) -> None:
    k = Kernel(named(), client=client)
    ctx = k.create_context("a")
    k.pre_execute_check(ctx, "hi").require()
    session = ctx._session
    k.post_execute_check(ctx, "x").require()
    k.pre_execute_check(ctx, tool(key="password: x")).require()
    assert ctx._session is session
    assert [c["arguments"] for c in ctx.tool_calls] == [{"key": "[REDACTED]"}]
    assert session is not None


SHARES = """
import sys, govnode
sys.path.insert(0, sys.argv[3])
from kernels import Kernel
from govnode.integration import GovernancePolicy, ToolCallRequest
client = govnode.Client(sys.argv[1])
k = Kernel(GovernancePolicy(name="shared", max_tool_calls=10), client=client)
ctx = k.create_context("a", session_id=sys.argv[2])
allowed = 0
for n in range(10):
    if k.pre_execute_check(ctx, ToolCallRequest("t", {"n": n})).allowed:
        allowed += 1
        k.post_execute_check(ctx, n)
print(allowed)
"""


def test_two_processes_share_a_session(client: govnode.Client, address: str, python: Callable[..., str]) -> None:
    from pathlib import Path

    here = str(Path(__file__).parent)
    counts: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: counts.append(int(python(SHARES, address, "shared-1", here))))
        for n in range(2)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sum(counts) == 10
    assert client.get_session("shared-1").executions == 10


def test_a_session_of_another_policy_is_refused(client: govnode.Client) -> None:
    first, second = Kernel(named(), client=client), Kernel(named(max_tool_calls=99), client=client)
    id = f"taken-{time.time_ns()}"
    assert first.pre_execute_check(first.create_context("a", id), "hi").allowed
    assert second.pre_execute_check(second.create_context("a", id), "hi").category == "error"


# Approvals.


def test_approve_and_deny(client: govnode.Client) -> None:
    k = Kernel(config(sensitive_tools=["mail"]), client=client, wait=0, approver=client, approver_name="carla")
    ctx = k.create_context("anna")
    asked = k.pre_execute_check(ctx, tool("mail", to="bert"))
    assert asked.approval_id in (asked.reason or "")
    assert k.pre_execute_check(ctx, tool("mail", to="bert")).approval_id == asked.approval_id  # the same call
    k.pre_execute_check(ctx, tool("mail", "m2", to="dora"))
    pending = k.get_pending_approvals()
    assert [(p["tool_name"], p["agent_id"]) for p in pending.values()] == [("mail", "anna")] * 2
    assert f"{ctx.session_id}:m2" in pending
    assert k.approve(asked.approval_id)
    assert k.deny("m2", reason="not her")
    assert k.get_pending_approvals() == {}
    assert k.pre_execute_check(ctx, tool("mail", to="bert")).allowed
    refused = k.pre_execute_check(ctx, tool("mail", "m2", to="dora"))
    assert (refused.allowed, refused.category) == (False, "human_approval_required")
    again = k.pre_execute_check(ctx, tool("mail", to="bert"))  # one yes is one call
    assert not again.allowed
    assert again.approval_id != asked.approval_id
    with pytest.raises(KeyError):
        k.approve("nothing")
    with pytest.raises(ValueError, match="approver"):
        Kernel(client=client).approve("x")


def test_the_agent_may_not_approve(client: govnode.Client) -> None:
    k = Kernel(config(sensitive_tools=["mail"]), client=client, wait=0, approver=client, approver_name="anna")
    asked = k.pre_execute_check(k.create_context("anna"), tool("mail"))
    with pytest.raises(govnode.Rejected, match="agent that asks cannot decide"):
        k.approve(asked.approval_id)


@pytest.mark.parametrize(
    ("answer", "allowed"), [(True, True), (False, False), ("yes", False), (None, False), (RuntimeError("x"), False)]
)
def test_approval_callback(client: govnode.Client, answer: Any, allowed: bool) -> None:
    asked: list[Any] = []

    def callback(name: str, arguments: dict[str, Any]) -> bool:
        asked.append((name, dict(arguments)))
        arguments["to"] = "somebody else"
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    policy = named(require_human_approval=True)
    k = Kernel(policy, client=client, approver=client, approval_callback=callback)
    ctx = k.create_context("anna")
    found = k.pre_execute_check(ctx, tool("mail", to="bert"))
    assert (found.allowed, asked) == (allowed, [("mail", {"to": "bert"})])
    if allowed:
        assert found.arguments == {"to": "bert"}


def test_callback_waits_for_a_slot(client: govnode.Client) -> None:
    policy = named(max_concurrent=1)
    k = Kernel(policy, client=client, wait=30, approver=client, approval_callback=lambda *_: True)
    ctx = k.create_context("a")
    k.pre_execute_check(ctx, tool()).require()
    found: queue.Queue[bool] = queue.Queue()
    other = threading.Thread(target=lambda: found.put(k.pre_execute_check(ctx, tool()).allowed))
    other.start()
    eventually(lambda: client.get_pool(f"policy/{policy.name}").waiting == 1)
    k.post_execute_check(ctx, None)
    assert found.get(timeout=30)
    other.join()
    assert client.get_session(ctx.session_id).attempts == 2  # the wait is no attempt of its own


def test_a_yes_waits_for_room(client: govnode.Client) -> None:
    k = Kernel(
        named(max_concurrent=1, require_human_approval=True), client=client, wait=0, approver=client,
        limits={"approval": {"timeout": "60s"}},
    )  # fmt: skip
    ctx = k.create_context("a")
    asked = [k.pre_execute_check(ctx, tool(n=n)).approval_id for n in range(2)]
    for id in asked:
        k.approve(id)
    assert k.pre_execute_check(ctx, tool(n=0)).allowed
    assert not k.pre_execute_check(ctx, tool(n=1)).allowed
    k.post_execute_check(ctx, None).require()
    assert k.pre_execute_check(ctx, tool(n=1)).allowed


def test_one_yes_is_one_call(client: govnode.Client) -> None:
    k = Kernel(config(sensitive_tools=["mail"]), client=client, wait=0, approver=client)
    ctx = k.create_context("a")
    k.approve(k.pre_execute_check(ctx, tool("mail")).approval_id)
    start, found = threading.Barrier(8), queue.Queue[bool]()

    def check() -> None:
        start.wait()
        found.put(k.pre_execute_check(ctx, tool("mail")).allowed)

    threads = [threading.Thread(target=check) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sum(found.get_nowait() for _ in threads) == 1


# Cancellation.


def test_a_cancelled_check_leaves_nothing(client: govnode.Client) -> None:
    policy = named(max_concurrent=1)
    k = Kernel(policy, client=client, wait=30)
    ctx = k.create_context("a")
    k.pre_execute_check(ctx, tool()).require()

    async def main() -> None:
        waits = asyncio.create_task(k.async_pre_execute_check(ctx, tool()))
        await asyncio.to_thread(eventually, lambda: client.get_pool(f"policy/{policy.name}").waiting == 1)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert (await k.async_post_execute_check(ctx, None)).allowed

    asyncio.run(main())
    eventually(lambda: client.get_pool(f"policy/{policy.name}").in_use == 0)
    assert ctx._open == []
    assert k.pre_execute_check(ctx, tool()).allowed


def test_a_cancelled_run_keeps_what_it_took_from_a_rate(client: govnode.Client) -> None:
    policy = named()
    rate = {"name": "tokens", "limit": 5, "per": "1h", "cost": "tokens"}
    k = Present(policy, client=client, limits={"rate_limits": [rate]})
    ctx = k.create_context("a")

    async def main() -> None:
        begun = asyncio.Event()

        async def work() -> None:
            begun.set()
            await asyncio.Event().wait()

        run = asyncio.create_task(k.agoverned(ctx, "hi", work))
        await begun.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(main())
    eventually(lambda: client.get_session(ctx.session_id).open_calls == ())
    assert client.get_rate(f"policy/{policy.name}/tokens").used == 1  # how many tokens it used is not known


# Guardrails, records, signals.


class Guard:
    def __init__(self, result: guardrail.GuardrailResult) -> None:
        self.result = result

    async def evaluate(self, **_: Any) -> guardrail.GuardrailResult:
        return self.result


def test_guardrails_are_asked(client: govnode.Client) -> None:
    modify = guardrail.GuardrailResult(guardrail.Decision.MODIFY, modified_args={"q": "y"})
    k = Kernel(named(blocked_patterns=["zap"]), client=client, guardrails=[Guard(modify)])
    ctx = k.create_context("a")
    assert k.pre_execute_check(ctx, tool(q="zap")).arguments == {"q": "y"}
    deny = guardrail.GuardrailResult(guardrail.Decision.DENY, "secrets")
    k = Kernel(named(), client=client, guardrails=[Guard(modify), Guard(deny)])
    assert k.pre_execute_check(k.create_context("a"), tool()).reason == "Tool call denied: secrets"


def test_records(client: govnode.Client) -> None:
    for all_calls in (True, False):
        told: list[PolicyViolationError] = []
        policy = named(blocked_patterns=["zap"], log_all_calls=all_calls)
        k = Kernel(policy, client=client, on_violation=told.append)
        ctx = k.create_context("a")
        k.pre_execute_check(ctx, tool(mail="jane@example.org", q=1)).require()
        k.pre_execute_check(ctx, tool(q="zap"))
        k.pre_execute_check(ctx, "hi")
        log = k.get_audit_log()
        assert [e["allowed"] for e in log] == ([True, False, True] if all_calls else [False])
        assert set(log[0]) >= {"timestamp", "event_type", "tool_name", "allowed", "reason", "arguments", "agent_id"}
        if all_calls:
            assert log[0]["arguments"] == {"mail": "[REDACTED]", "q": 1}
        assert [v.category for v in k.get_violations()] == ["blocked_pattern_input"]
        assert k.get_violations() == told
        stats = k.get_stats()
        assert (stats["total_tool_calls"], stats["total_violations"]) == (1, 1)
        log.clear()
        assert k.audit_log


def test_stop_continue_kill(client: govnode.Client) -> None:
    k = Kernel(named(), client=client, wait=0)
    ctx = k.create_context("a")
    k.pre_execute_check(ctx, "hi").require()
    shared = Kernel(k.policy, client=client)  # has asked the service nothing yet
    shared.create_context("a", ctx.session_id)
    shared.create_context("nobody")
    shared.signal_stop()
    assert k.pre_execute_check(ctx, "hi").category == "stopped"
    k.signal_stop("enough")
    assert k._stopped
    assert k.pre_execute_check(ctx, "hi").category == "signal"
    assert k.pre_execute_check(k.create_context("new"), "hi").category == "signal"
    elsewhere = client.session(ctx.session_id)
    assert elsewhere.begin("t", wait=0).outcome == "STOPPED"
    k.signal_continue()
    assert elsewhere.begin("t", wait=0).admitted
    k.contexts["a"] = ctx
    k.signal_kill("over")
    assert k._killed
    assert k.pre_execute_check(ctx, "hi").category == "signal"
    assert elsewhere.begin("t", wait=0).outcome == "SESSION_CLOSED"
    found = k.post_execute_check(ctx, "late")
    assert (found.allowed, found.category) == (False, "lease_lost")


def test_signals_reach_all_contexts_of_an_agent(client: govnode.Client) -> None:
    k = Kernel(named(), client=client, wait=0)
    contexts = [k.create_context("anna") for _ in range(2)]
    closed = k.create_context("anna")
    for ctx in (*contexts, closed):
        k.pre_execute_check(ctx, "hi").require()
    client.session(closed.session_id).close()  # nothing goes on in it
    elsewhere = [client.session(ctx.session_id) for ctx in contexts]
    k.signal_stop("enough")
    assert [s.begin("t", wait=0).outcome for s in elsewhere] == ["STOPPED"] * 2
    k.signal_continue()
    assert all(s.begin("t", wait=0).admitted for s in elsewhere)
    k.signal_kill("over")
    assert [s.read().state for s in elsewhere] == ["CLOSED"] * 2


def test_a_kill_by_the_service(client: govnode.Client) -> None:
    k = Kernel(named(), client=client, wait=0)
    heard: list[str] = []
    k.on_signal("SIGKILL", heard.append)
    ctx = k.create_context("a")
    k.pre_execute_check(ctx, "hi").require()
    client.signal("KILL", session_id=ctx.session_id)
    assert k.pre_execute_check(ctx, "hi").category == "session_closed"
    assert heard == ["a"]
    assert not k.post_execute_check(ctx, "late").allowed


# Without the service.


def test_no_service_denies() -> None:
    heard: list[str] = []
    with govnode.Client("127.0.0.1:1", timeout=0.2) as nobody:
        for policy in (named(), "named", PolicyConfig(), None):
            k = Kernel(policy, client=nobody, on_violation=lambda e: heard.append(e.category))
            ctx = k.create_context("a")
            assert k.pre_execute_check(ctx, tool()).category == "no_answer"
            assert k.post_execute_check(ctx, "x").category == "no_answer"
            assert k._last_error is not None
        assert heard == ["no_answer"] * 8
        assert k.health_check()["status"] == "unhealthy"
        eventually(lambda: not any(t.name == "govnode-health" for t in threading.enumerate()))
        cedar = Kernel.from_cedar(policy_content="permit(principal, action, resource);", client=nobody)
        assert not cedar.pre_execute_check(cedar.create_context("a"), "hi").allowed
        assert cedar._evaluate_policy(cedar._build_cedar_context("a", tool_name="t"))[0] is False
        with pytest.raises(govnode.NoAnswer):
            k.signal_stop()
        assert k._stopped  # here, at least
        with pytest.raises(govnode.NoAnswer):
            k.signal_continue()
        assert k._stopped


def test_fail_open_allows_what_has_a_session() -> None:
    with testing.node() as address:
        failing = govnode.Client(address, timeout=0.5, fail_open=True)
        k = Kernel(named(), client=failing, wait=0)
        scanning = Kernel(config(), client=failing, wait=0)
        for given in (k, scanning):
            given.pre_execute_check(given.create_context("a"), "hi").require()
            given.post_execute_check(given.contexts["a"], None).require()
    with failing:
        assert k.pre_execute_check(k.contexts["a"], "hi").allowed
        assert k.post_execute_check(k.contexts["a"], None).allowed
        assert scanning.pre_execute_check(scanning.contexts["a"], "hi").category == "no_answer"
        assert k.pre_execute_check(k.create_context("b"), "hi").category == "no_answer"


def test_a_lost_lease_is_said(client: govnode.Client) -> None:
    k = Kernel(named(timeout_seconds=1), client=client, wait=0)
    ctx = k.create_context("a")
    k.pre_execute_check(ctx, "hi").require()
    # It is held for the second that the policy gives, and settled then.
    eventually(lambda: client.get_session(ctx.session_id).executions == 1)
    found = k.post_execute_check(ctx, "late")
    assert (found.allowed, found.category) == (False, "lease_lost")


@pytest.mark.parametrize("arguments", [None, "x", [1], 5])
def test_arguments_that_are_none(client: govnode.Client, arguments: Any) -> None:
    k = Kernel(named(), client=client)
    found = k.pre_execute_check(k.create_context("a"), ToolCallRequest("t", arguments))
    assert (found.allowed, found.category) == (False, "error")
