"""The sixteen points that tests of an adapter must cover (adapter contract 22.3), each on a real node."""

from __future__ import annotations

import asyncio
import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually
from kernels import Kernel, Missing, Present

import govnode
from govnode.integration import (
    BaseIntegration,
    CompositeInterceptor,
    ContentHashInterceptor,
    GovernancePolicy,
    PatternType,
    PolicyCheckResult,
    ToolCallRequest,
    ToolCallResult,
    content_hash,
)
from govnode.messages import Counters, Ended

_numbers = itertools.count()


def kernel(client: govnode.Client, policy: Any = None, **options: Any) -> Kernel:
    """Return an adapter under a policy of its own, unless one is given."""
    if isinstance(policy, dict):
        policy = GovernancePolicy(**{"name": f"contract-{next(_numbers)}", **policy})
    return Kernel(policy, client=client, wait=0, **options)


def tool(name: str = "t", **arguments: Any) -> ToolCallRequest:
    return ToolCallRequest(name, arguments)


def test_22_3_1_subclass_of_base_integration(client: govnode.Client) -> None:
    assert issubclass(Kernel, BaseIntegration)
    with pytest.raises(TypeError, match="abstract"):
        BaseIntegration()  # type: ignore[abstract]
    k = kernel(client)
    assert (k.policy, k._evaluator, k.contexts) == (GovernancePolicy(), None, {})
    ctx = k.create_context("a")
    assert k.pre_execute_check(ctx, "hi").allowed
    assert client.get_session(ctx.session_id).agent_id == "a"


def test_22_3_2_wrap_and_unwrap(client: govnode.Client) -> None:
    agent = object()
    k = kernel(client)
    with pytest.warns(DeprecationWarning, match="as_hook"):
        governed = k.wrap(agent)
    assert governed is not agent
    assert k.unwrap(governed) is agent
    assert k.unwrap(agent) is agent


class Unsure:
    def __init__(self, confidence: float) -> None:
        self.confidence = confidence


@pytest.mark.parametrize(
    ("policy", "before", "given", "category", "reason"),
    [
        ({"max_tool_calls": 2}, 2, "hi", "max_tool_calls", "2"),
        ({"max_tool_calls": 0}, 0, tool(), "max_tool_calls", "0"),
        ({"timeout_seconds": 1}, 1, "hi", "timeout", "1s"),
        ({"blocked_patterns": ["rm -rf"]}, 0, "do RM -RF /", "blocked_pattern_input", "rm -rf"),
        ({"blocked_patterns": [(r"\bd+\b", PatternType.REGEX)]}, 0, {"q": "x DD"}, "blocked_pattern_input", "d+"),
        ({"blocked_patterns": [("*.pem", PatternType.GLOB)]}, 0, {"q": "K.PEM"}, "blocked_pattern_input", "pem"),
        ({"blocked_patterns": [("my.key", PatternType.GLOB)]}, 0, "read MY.KEY", "blocked_pattern_input", "my.key"),
        ({"require_human_approval": True}, 0, "hi", "human_approval_required", "human approval"),
        ({"confidence_threshold": 0.8}, 0, Unsure(0.79), "confidence_threshold", "0.79"),
        ({"confidence_threshold": 0.8}, 0, {"q": "x", "confidence": 0.79}, "confidence_threshold", "0.79"),
        ({"allowed_tools": ["other"]}, 0, tool(), "not_allowed_tool", "allowed list"),
        # The order of section 3.6.
        (
            {"max_tool_calls": 0, "blocked_patterns": ["hi"], "require_human_approval": True},
            0,
            "hi",
            "max_tool_calls",
            "0",
        ),
        ({"blocked_patterns": ["hi"], "require_human_approval": True}, 0, "hi", "blocked_pattern_input", "hi"),
    ],
)
def test_22_3_3_denials_before(
    client: govnode.Client, policy: dict[str, Any], before: int, given: Any, category: str, reason: str
) -> None:
    k = kernel(client, policy)
    heard, ctx = k.heard(), k.create_context("a")
    for _ in range(before):
        assert k.pre_execute(ctx, "first") == (True, None)
        assert k.post_execute(ctx, None) == (True, None)
    if category == "timeout":
        eventually(lambda: client.get_session(ctx.session_id).age > 1.0)
    heard.clear()
    found = k.pre_execute_check(ctx, given)
    assert not found.allowed
    assert found.category == category, found
    assert reason in (found.reason or "")
    blocked = ["tool_call_blocked"] if isinstance(given, ToolCallRequest) else []
    assert [name for name, _ in heard] == ["policy_check", "policy_violation", *blocked]
    assert k.audit_log[-1]["event_type"] == heard[-1][0]
    assert client.get_session(ctx.session_id).executions == before
    with pytest.raises(govnode.Error):
        found.require()


def test_22_3_3_what_is_allowed(client: govnode.Client) -> None:
    k = kernel(client, {"blocked_patterns": ["rm -rf"], "confidence_threshold": 0.8, "allowed_tools": ["t"]})
    ctx = k.create_context("a")
    for given in ("hi", {"q": 1}, Unsure(0.8), {"confidence": 1}, {"confidence": "low"}, tool(), None):
        assert k.pre_execute_check(ctx, given).allowed
        assert k.post_execute_check(ctx, "done").allowed


def test_22_3_4_counts_and_checkpoints_after(client: govnode.Client) -> None:
    k = kernel(client, {"checkpoint_frequency": 2, "drift_threshold": 0.0})
    heard, ctx = k.heard(), k.create_context("a")
    for n in range(1, 5):
        k.pre_execute_check(ctx, tool(), tokens=10).require()
        k.post_execute_check(ctx, "out", tokens=3).require()
        assert (ctx.call_count, len(ctx.checkpoints)) == (n, n // 2)
    assert ctx.total_tokens == 12
    assert [d["checkpoint_id"] for name, d in heard if name == "checkpoint_created"] == ctx.checkpoints
    for used, total in ((0, 12), (None, 22)):  # what is not said is what was asked for
        k.pre_execute_check(ctx, tool(), tokens=10).require()
        k.post_execute_check(ctx, "out", tokens=used).require()
        assert ctx.total_tokens == total
    k.post_execute_check(ctx, "out").require()  # nobody checked before
    assert ctx.call_count == 7


def test_22_3_4_async_forms(client: govnode.Client) -> None:
    k = kernel(client, {"max_concurrent": 5})
    ctx = k.create_context("a")

    async def one(n: int) -> bool:
        assert (await k.async_pre_execute(ctx, tool(n=n)))[0]
        return (await k.async_post_execute(ctx, n))[0]

    async def main() -> list[bool]:
        return await asyncio.gather(*[one(n) for n in range(5)])

    assert asyncio.run(main()) == [True] * 5
    assert client.get_session(ctx.session_id).executions == 5
    assert ctx._open == []


class Stricter(Kernel):
    """An adapter that looks at more, in the forms that are not async alone."""

    def pre_execute_check(self, ctx: Any, input_data: Any, **named: Any) -> PolicyCheckResult:
        if input_data == "no":
            return PolicyCheckResult(False, "not here", "own")
        return super().pre_execute_check(ctx, input_data, **named)

    def post_execute_check(self, ctx: Any, output_data: Any, **named: Any) -> PolicyCheckResult:
        found = super().post_execute_check(ctx, output_data, **named)
        return PolicyCheckResult(False, "not that", "own") if output_data == "no" else found


def test_3_8_async_forms_do_what_the_others_do(client: govnode.Client) -> None:
    k = Stricter(GovernancePolicy(name=f"contract-{next(_numbers)}"), client=client)
    ctx = k.create_context("a")

    async def one(output: object) -> tuple[bool, str | None]:
        assert await k.async_pre_execute(ctx, "no") == (False, "not here")
        assert (await k.async_pre_execute_check(ctx, "yes", tokens=2)).allowed
        return await k.async_post_execute(ctx, output)

    async def main() -> list[tuple[bool, str | None]]:
        return list(await asyncio.gather(one("yes"), one("no"), one(ValueError("failed"))))

    assert asyncio.run(main()) == [(True, None), (False, "not that"), (True, None)]
    session = client.get_session(ctx.session_id)
    assert (session.executions, session.failures, ctx.total_tokens) == (3, 1, 6)
    assert ctx._open == []


def test_3_5_counters_are_those_of_the_latest_answer(client: govnode.Client) -> None:
    k = kernel(client, {})
    ctx = k.create_context("a")
    answers = [(7, 2, 4), (7, 3, 6), (7, 1, 2), (5, 9, 9), (8, 1, 1)]  # the last is of a state that was restored
    seen = []
    for index, executions, tokens in answers:
        counters = Counters(executions=executions, tokens_used=tokens)
        k._ended(ctx, Ended(outcome="ENDED", counters=counters, index=index))
        seen.append((ctx.call_count, ctx.total_tokens))
    assert seen == [(2, 4), (3, 6), (3, 6), (3, 6), (1, 1)]


@pytest.mark.parametrize(
    ("output", "status", "failures"),
    [("ok", None, 0), (ValueError("x"), None, 1), ("x", "failed", 1), (asyncio.CancelledError(), None, 0)],
)
def test_22_3_4_status(client: govnode.Client, output: Any, status: str | None, failures: int) -> None:
    k = kernel(client, {})
    ctx = k.create_context("a")
    k.pre_execute_check(ctx, "hi").require()
    assert k.post_execute_check(ctx, output, status=status).allowed
    assert client.get_session(ctx.session_id).failures == failures
    with pytest.raises(ValueError, match="status"):
        k.post_execute_check(ctx, None, status="fine")


def test_22_3_5_drift(client: govnode.Client) -> None:
    k = kernel(client, {"drift_threshold": 0.5})
    heard, ctx = k.heard(), k.create_context("a")
    found = []
    for output in ("the same words", "the same words!", "0123456789"):
        k.pre_execute_check(ctx, "hi").require()
        k.post_execute_check(ctx, output).require()
        found.append([d for name, d in heard if name == "drift_detected"])
    assert [len(f) for f in found] == [0, 0, 1]
    assert found[-1][0]["drift_score"] > found[-1][0]["threshold"] == 0.5


class Says:
    def __init__(self, allowed: bool, modified: dict[str, Any] | None = None) -> None:
        self.result = ToolCallResult(allowed, None if allowed else "not by me", modified)
        self.asked = 0

    def intercept(self, request: ToolCallRequest) -> ToolCallResult:
        self.asked += 1
        return self.result


def test_22_3_6_composite_short_circuit(client: govnode.Client) -> None:
    says = [Says(True), Says(False), Says(True)]
    k = kernel(client, {}, interceptors=CompositeInterceptor(says).interceptors)
    heard, ctx = k.heard(), k.create_context("a")
    found = k.pre_execute_check(ctx, tool())
    assert (found.allowed, found.reason, found.category) == (False, "not by me", "interceptor")
    assert [s.asked for s in says] == [1, 1, 0]
    assert [name for name, _ in heard] == ["policy_check", "policy_violation", "tool_call_blocked"]
    with pytest.raises(govnode.Rejected):  # the service was asked nothing
        client.get_session(ctx.session_id)


def test_22_3_6_what_interceptors_change_is_judged(client: govnode.Client) -> None:
    policy = {"blocked_patterns": ["bad"]}
    k = kernel(client, policy, interceptors=[Says(True, {"q": "good"})])
    ctx = k.create_context("a")
    assert k.pre_execute_check(ctx, tool(q="bad")).arguments == {"q": "good"}
    k = kernel(client, policy, interceptors=[Says(True, {"q": "bad"})])
    assert not k.pre_execute_check(k.create_context("a"), tool(q="good")).allowed


@pytest.mark.parametrize(
    ("strict", "name", "own", "allowed"),
    [
        (True, "t", True, True),
        (True, "t", False, False),
        (True, "alias", True, False),
        (False, "alias", True, True),
        (False, "t", False, False),
    ],
)
def test_22_3_7_content_hash(client: govnode.Client, strict: bool, name: str, own: bool, allowed: bool) -> None:
    registered = content_hash(kernel)
    assert registered is not None
    k = kernel(client, {}, interceptors=[ContentHashInterceptor({"t": registered}, strict=strict)])
    ctx = k.create_context("a")
    request = k.tool_request(ctx, name, {}, tool=kernel if own else tool)
    assert k.pre_execute_check(ctx, request).allowed is allowed
    # And by the service, where the policy holds the hashes.
    mode = "strict" if strict else "warn"
    k = kernel(client, {}, limits={"content_hashes": {"t": registered}, "content_hash_mode": mode})
    ctx = k.create_context("a")
    request = k.tool_request(ctx, name, {}, tool=kernel if own else tool)
    assert k.pre_execute_check(ctx, request).allowed is allowed


@pytest.mark.parametrize("pattern", [r"(a)\1", r"x(?=y)"])
def test_22_3_8_what_the_service_cannot_run_is_denied(client: govnode.Client, pattern: str) -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        kernel(client, {"max_tokens": 0})
    k = kernel(client, {"blocked_patterns": [(pattern, PatternType.REGEX)]})
    found = k.pre_execute_check(k.create_context("a"), "hi")
    assert (found.allowed, found.category) == (False, "error")
    assert "blocked_patterns[0]" in (found.reason or "")
    assert k._last_error is not None


def test_22_3_9_what_is_read_back_holds_as_before(client: govnode.Client, tmp_path: Path) -> None:
    policy = GovernancePolicy(
        name="read-back",
        max_tool_calls=3,
        allowed_tools=["t"],
        blocked_patterns=["a: b", "#", ("y+", PatternType.REGEX), "é\n'\""],
    )
    policy.save(tmp_path / "p.yaml")
    for read in (policy, GovernancePolicy.load(tmp_path / "p.yaml"), GovernancePolicy.from_dict(policy.to_dict())):
        k = kernel(client, read)
        ctx = k.create_context("a")
        assert k.pre_execute_check(ctx, tool()).allowed
        for text in ("A: B", "x#", "yyy", "É\n'\""):
            assert k.pre_execute_check(ctx, text).category == "blocked_pattern_input"
    assert client.get_policy("read-back").version == 1


def test_22_3_10_the_stricter_policy_allows_less(client: govnode.Client) -> None:
    loose = {"max_tool_calls": 5, "max_concurrent": 4}
    strict = {"max_tool_calls": 3, "max_concurrent": 2}
    assert GovernancePolicy(**strict).is_stricter_than(GovernancePolicy(**loose))  # type: ignore[arg-type]
    for policy in (loose, strict):
        k = kernel(client, policy)
        ctx = k.create_context("a")
        open_ = sum(k.pre_execute_check(ctx, tool(n=n)).allowed for n in range(8))
        assert open_ == policy["max_concurrent"]
        for _ in range(open_):
            k.post_execute_check(ctx, None)
        more = 0
        while k.pre_execute_check(ctx, tool()).allowed:
            k.post_execute_check(ctx, None)
            more += 1
        assert open_ + more == policy["max_tool_calls"]


def test_22_3_11_events(client: govnode.Client, caplog: pytest.LogCaptureFixture) -> None:
    def fails(_: Any) -> None:
        raise RuntimeError("a bad listener")

    k = kernel(client, {"blocked_patterns": ["bad"]})
    for event in govnode.integration.GovernanceEventType:
        k.on(event, fails)
    heard, again, ctx = k.heard(), k.heard(), k.create_context("a")
    assert k.pre_execute_check(ctx, "good").allowed
    assert not k.pre_execute_check(ctx, "bad").allowed
    assert heard == again
    assert [name for name, _ in heard] == ["policy_check", "policy_check", "policy_violation"]
    assert heard[-1][1]["agent_id"] == "a"
    assert "a listener of policy_check failed" in caplog.text


def test_3_9_3_a_text_that_is_blocked_is_no_call_of_a_tool(client: govnode.Client) -> None:
    policy = GovernancePolicy(name=f"contract-{next(_numbers)}", blocked_patterns=["bad"])
    k = Present(policy, client=client)
    heard: list[str] = []
    for event in govnode.integration.GovernanceEventType:
        k.on(event, lambda _, name=event.value: heard.append(name))  # type: ignore[misc]
    with pytest.raises(govnode.errors.PolicyViolationError, match="output"):
        k.look(k.create_context("a"), "something bad", "output", "t")
    assert heard == ["policy_violation"]


def test_22_3_12_signals(client: govnode.Client) -> None:
    k, other = kernel(client, {}), kernel(client, {})
    heard: list[tuple[str, str]] = []
    k.on_signal("STOP", lambda agent: heard.append(("never", agent)))
    for name in ("STOP", "SIGSTOP", "SIGCONT", "drain"):
        k.on_signal(name, lambda agent, name=name: heard.append((name, agent)))  # type: ignore[misc]
    k.signal("a", "drain")
    k.signal("a", "nobody listens")
    other.signal("a", "drain")
    assert heard == [("drain", "a")]
    ctx = k.create_context("a")
    assert k.pre_execute_check(ctx, "hi").allowed
    client.signal("STOP", session_id=ctx.session_id, reason="enough")
    for _ in range(2):
        found = k.pre_execute_check(ctx, "hi")
        assert (found.allowed, found.category) == (False, "stopped")
    client.signal("CONTINUE", session_id=ctx.session_id)
    assert k.pre_execute_check(ctx, "hi").allowed
    assert heard == [("drain", "a"), ("STOP", "a"), ("SIGSTOP", "a"), ("SIGCONT", "a")]


def test_22_3_13_missing_framework(client: govnode.Client) -> None:
    missing = Missing(client=client)
    assert missing.pre_execute_check(missing.create_context("a"), "hi").allowed
    with pytest.raises(RuntimeError, match=r"pip install 'govnode\[no-such-framework\]'"):
        missing.as_hook()
    Present().as_hook()


def test_22_3_14_deprecation(client: govnode.Client) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Present(client=client).wrap(object())
        with pytest.raises(ImportError, match="pip install"):
            Missing(client=client).wrap(object())
    assert [(w.category, w.filename) for w in caught] == [(DeprecationWarning, __file__)] * 2
    assert "Use as_hook()" in str(caught[0].message)


def test_22_3_15_health(client: govnode.Client) -> None:
    k = kernel(client, {"blocked_patterns": [(r"(a)\1", PatternType.REGEX)]})
    found = k.health_check()
    assert set(found) == {"status", "backend", "backend_connected", "last_error", "uptime_seconds"}
    assert (found["status"], found["backend"], found["backend_connected"]) == ("healthy", "tests", True)
    k.pre_execute_check(k.create_context("a"), "hi")
    found = k.health_check()
    assert (found["status"], found["backend_connected"]) == ("degraded", True)
    assert found["last_error"] == k._last_error


def test_22_3_16_from_cedar(client: govnode.Client, tmp_path: Path) -> None:
    path = tmp_path / "policy.cedar"
    path.write_text('permit(principal, action, resource); forbid(principal, action == Action::"Shell", resource);')
    k = Kernel.from_cedar(policy_path=str(path), policy=GovernancePolicy(name="cedared"), client=client, wait=0)
    ctx = k.create_context("a")
    k.policy = GovernancePolicy(name="other")  # of later contexts
    assert k.pre_execute_check(ctx, tool("read")).allowed
    found = k.pre_execute_check(ctx, tool("shell"))
    assert (found.allowed, found.category) == (False, "policy_backend")
    for name, allowed in (("read", True), ("shell", False)):
        assert k._evaluate_policy(k._build_cedar_context("a", tool_name=name))[0] is allowed
    assert {f.path for f in client.get_policy("cedared").files} == {"policy.yaml", "policy.cedar"}
    with pytest.raises(govnode.Rejected):
        client.get_policy("other")
    with pytest.raises(ValueError, match="from_cedar"):
        Kernel.from_cedar()
    with pytest.raises(ValueError, match="from_cedar"):
        Kernel.from_cedar(policy_path="x", policy_content="y")
    broken = Kernel.from_cedar(policy_content="permit(", client=client)
    assert broken.pre_execute_check(broken.create_context("a"), "hi").category == "error"


class Evaluator:
    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    def evaluate(self, context: dict[str, Any]) -> Any:
        self.asked.append(context)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [RuntimeError("x"), None, ToolCallResult(False, "no"), ToolCallResult("yes")])  # type: ignore[arg-type]
def test_22_3_16_evaluators_fail_closed(client: govnode.Client, answer: Any) -> None:
    k = kernel(client, {}, evaluator=Evaluator(answer))
    found = k.pre_execute_check(k.create_context("a"), tool())
    assert (found.allowed, found.category) == (False, "evaluator")


def test_22_3_16_an_evaluator_judges_what_is_used(client: govnode.Client) -> None:
    evaluator = Evaluator(ToolCallResult(True))
    k = kernel(client, {}, evaluator=evaluator, interceptors=[Says(True, {"q": "y"})])
    assert k.pre_execute_check(k.create_context("a"), tool(q="x")).allowed
    assert [c["tool_args"] for c in evaluator.asked] == [{"q": "x"}, {"q": "y"}]
    assert {c["action_type"] for c in evaluator.asked} == {"tool_call"}
