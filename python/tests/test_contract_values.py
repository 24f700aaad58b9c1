"""The values of the adapter contract, which need no node: tables."""

from __future__ import annotations

import asyncio
import logging
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from kernels import Kernel

from govnode import _ids
from govnode.guardrail import Decision, GuardrailResult, denial, evaluate_chain
from govnode.integration import (
    BoundedSemaphore,
    CompositeInterceptor,
    ContentHashInterceptor,
    ExecutionContext,
    GovernancePolicy,
    GuardrailInterceptor,
    PatternType,
    PolicyConfig,
    PolicyInterceptor,
    ToolCallRequest,
    ToolCallResult,
    content_hash,
)
from govnode.integration._policies import CedarEvaluator
from govnode.integration.records import MOST, redacted
from govnode.integrations import AnthropicKernel, OpenAIKernel

REGEX, GLOB = PatternType.REGEX, PatternType.GLOB


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((f, v) for f in ("max_tokens", "timeout_seconds", "max_concurrent", "backpressure_threshold",
                           "checkpoint_frequency") for v in (0, -1, 1.5, True, "9", None)),
        *(("max_tool_calls", v) for v in (-1, 1.5, True, None)),
        *((f, v) for f in ("confidence_threshold", "drift_threshold") for v in (-0.1, 1.1, "1", True, float("nan"))),
        *((f, v) for f in ("require_human_approval", "log_all_calls") for v in (1, "no", None)),
        *(("allowed_tools", v) for v in ("shell", ("a",), [1], None)),
        *(("blocked_patterns", v) for v in ("x", [1], [("a",)], [("a", "regex")], [("(", REGEX)])),
        ("name", ""), ("name", 1), ("version", ""), ("version", 2),
    ],
)  # fmt: skip
def test_policy_refuses(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        GovernancePolicy(**{field: value})


@pytest.mark.parametrize(
    ("pattern", "text", "hits"),
    [
        ("DROP", "please drop table", True),
        ("drop", "DrOp", True),
        ("a.c", "abc", False),
        (("a.c", REGEX), "xABCx", True),
        (("^a", REGEX), "ba", False),
        (("*.PEM", GLOB), "key.pem", True),
        (("*.pem", GLOB), "key.pem.txt", False),
    ],
)
def test_policy_matches(pattern: Any, text: str, hits: bool) -> None:
    found = GovernancePolicy(blocked_patterns=[pattern]).matches_pattern(text)
    assert found == ([pattern if isinstance(pattern, str) else pattern[0]] if hits else [])


def test_4_3_all_patterns_that_match_are_returned() -> None:
    policy = GovernancePolicy(blocked_patterns=["z", "A", ("x|a", REGEX), "A", ("*A", GLOB), ("b", GLOB)])
    assert policy.matches_pattern("xa") == ["A", "x|a", "A", "*A"]
    assert policy.matches_pattern("") == []


def test_policy_survives_being_written(tmp_path: Path) -> None:
    policy = GovernancePolicy(
        name="n",
        max_tool_calls=0,
        allowed_tools=["a"],
        blocked_patterns=["x", ("y+", REGEX), ("*.z", GLOB)],
        version="2",
    )
    policy.save(tmp_path / "policy.yaml")
    for copy in (
        GovernancePolicy.from_dict({**policy.to_dict(), "unknown": 1}),
        GovernancePolicy.from_yaml(policy.to_yaml()),
        GovernancePolicy.load(tmp_path / "policy.yaml"),
    ):
        assert copy == policy
        assert copy.diff(policy) == {}
    with pytest.raises(ValueError, match="mapping"):
        GovernancePolicy.from_yaml("- 1")
    with pytest.raises(ValueError, match="invalid YAML"):
        GovernancePolicy.from_yaml("!!python/object/apply:os.getcwd []")


@pytest.mark.parametrize(
    ("mine", "stricter"),
    [
        ({}, False),
        ({"max_tokens": 1}, True),
        ({"max_tool_calls": 9}, True),
        ({"timeout_seconds": 299}, True),
        ({"max_concurrent": 9}, True),
        ({"backpressure_threshold": 7}, True),
        ({"checkpoint_frequency": 4}, True),
        ({"checkpoint_frequency": 6}, False),
        ({"drift_threshold": 0.0}, False),
        ({"confidence_threshold": 0.9}, True),
        ({"confidence_threshold": 0.7}, False),
        ({"blocked_patterns": ["x"]}, True),
        ({"allowed_tools": ["a"]}, True),
        ({"require_human_approval": True}, True),
        ({"max_tokens": 1, "max_tool_calls": 11}, False),
        ({"version": "2"}, False),
    ],
)
def test_policy_is_stricter(mine: dict[str, Any], stricter: bool) -> None:
    policy, other = GovernancePolicy(**mine), GovernancePolicy()
    assert policy.is_stricter_than(other) is stricter
    assert not (stricter and other.is_stricter_than(policy))


def test_policy_compares() -> None:
    old, new = GovernancePolicy(), GovernancePolicy(max_tokens=1, version="2")
    assert old.compare_versions(new) == {
        "old_version": "1.0.0",
        "new_version": "2",
        "versions_differ": True,
        "changes": {"max_tokens": (4096, 1), "version": ("1.0.0", "2")},
    }


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, ""),
        ({"backpressure_threshold": 10}, "backpressure_threshold"),
        ({"max_tool_calls": 0, "allowed_tools": ["a"]}, "max_tool_calls"),
        ({"confidence_threshold": 0.0}, "confidence_threshold"),
        ({"timeout_seconds": 4}, "timeout_seconds"),
    ],
)
def test_policy_conflicts(settings: dict[str, Any], says: str) -> None:
    warnings = GovernancePolicy(**settings).detect_conflicts()
    assert len(warnings) == (1 if says else 0)
    assert all(says in w for w in warnings)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tool_calls", -1), ("max_agent_calls", -1), ("max_agent_calls", True), ("timeout_seconds", 0),
        ("allowed_tools", "shell"), ("blocked_tools", "shell"), ("blocked_tools", [1]), ("blocked_tools", [""]),
        ("sensitive_tools", ("a",)), ("blocked_patterns", [("a", REGEX)]), ("pii_detection", 1),
        ("log_all_calls", 1), ("require_human_approval", "yes"), ("max_budget", -1), ("max_budget", "5"),
        ("max_budget", True), ("max_budget", float("nan")), ("max_budget", 1e13),
    ],
)  # fmt: skip
def test_config_refuses(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        PolicyConfig(**{field: value})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"policy": 5}, "policy"),
        ({"policy": ""}, "policy"),
        ({"limits": {"max_tool_calls": 5}}, "max_tool_calls is a field"),
        ({"limits": {"max_calls": 5}}, "there is no max_calls"),
        ({"limits": {"budgets": [{"budget": "b", "amount": Decimal(1)}]}}, "budgets"),
        ({"policy": PolicyConfig(), "limits": {"max_agent_calls": 5}}, "max_agent_calls"),
        ({"policy": "there", "limits": {"max_attempts": 5}}, "limits"),
        ({"policy": "there", "evaluator": CedarEvaluator({})}, "policy"),
        ({"policy": PolicyConfig(sensitive_tools=["a"]), "evaluator": CedarEvaluator({})}, "sensitive_tools"),
        ({"policy": PolicyConfig(max_budget=1.0)}, "max_budget"),
        ({"cost": 1.0}, "max_budget"),
        ({"approval_callback": lambda *_: True}, "approver"),
    ],
)
def test_adapter_refuses_what_would_not_hold(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Kernel(**options)


def call(tool: str = "t", **metadata: Any) -> ToolCallRequest:
    return ToolCallRequest(tool, {"q": "x"}, metadata=metadata)


@pytest.mark.parametrize(
    ("policy", "calls", "reason"),
    [
        ({}, 0, None),
        ({"require_human_approval": True, "allowed_tools": ["a"]}, 99, "human approval"),
        ({"allowed_tools": ["a"], "blocked_patterns": ["x"]}, 99, "allowed list"),
        ({"blocked_patterns": ["X"]}, 99, "Blocked pattern 'X'"),
        ({}, 10, r"Max tool calls exceeded \(10\)"),
    ],
)
def test_policy_interceptor(policy: dict[str, Any], calls: int, reason: str | None) -> None:
    ctx = ExecutionContext("a", "s", GovernancePolicy(), call_count=calls)
    result = PolicyInterceptor(GovernancePolicy(**policy), ctx).intercept(call())
    assert result.allowed is (reason is None)
    if reason:
        with pytest.raises(AssertionError, match=reason):
            raise AssertionError(result.reason)


@pytest.mark.parametrize(
    ("tool", "strict", "actual", "allowed"),
    [
        ("t", True, "h", True),
        ("t", True, "other", False),
        ("t", True, "", False),
        ("t", False, "other", False),
        ("t", False, "", False),
        ("alias", True, "h", False),
        ("alias", False, "h", True),
    ],
)
def test_content_hash_interceptor(tool: str, strict: bool, actual: str, allowed: bool) -> None:
    interceptor = ContentHashInterceptor({"t": "h"}, strict=strict)
    assert interceptor.intercept(call(tool, content_hash=actual)).allowed is allowed


def test_5_5_what_is_said_of_a_hash(caplog: pytest.LogCaptureFixture) -> None:
    hashes = {"t": "a" * 64}
    found = ContentHashInterceptor(hashes).intercept(call(content_hash="b" * 64))
    assert found.reason == (
        "Tool 't' content hash mismatch: expected aaaaaaaaaaaa… got bbbbbbbbbbbb… (possible tampering or wrapper)"
    )
    missing = ContentHashInterceptor(hashes, strict=False).intercept(call())
    assert missing.reason == "Tool 't' call is missing content_hash metadata — cannot verify integrity"
    unknown = "Tool 'alias' has no registered content hash (possible alias or wrapper)"
    assert ContentHashInterceptor(hashes).intercept(call("alias")).reason == unknown
    assert not caplog.records
    assert ContentHashInterceptor(hashes, strict=False).intercept(call("alias")).allowed
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("WARNING", f"govnode: {unknown}")]


def test_content_hash_is_of_the_tool_itself() -> None:
    import functools

    def tool() -> int:
        return 1

    @functools.wraps(tool)
    def wrapper() -> int:
        return 2

    assert content_hash(tool) != content_hash(wrapper)
    assert len(content_hash(tool) or "") == 64
    assert content_hash(print) is None
    ctx = ExecutionContext("a", "s", GovernancePolicy())
    assert Kernel().tool_request(ctx, "t", {}, tool=tool).metadata == {"content_hash": content_hash(tool)}
    assert Kernel().tool_request(ctx, "t", {}, tool=print).metadata == {}


class Says:
    """An interceptor with one answer, which takes down what it sees."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.seen: list[dict[str, Any]] = []

    def intercept(self, request: ToolCallRequest) -> ToolCallResult:
        self.seen.append(dict(request.arguments))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


YES, NO = ToolCallResult(True), ToolCallResult(False, "no")


@pytest.mark.parametrize(
    ("answers", "allowed", "asked"),
    [
        ([], True, []),
        ([YES, YES], True, [1, 1]),
        ([YES, NO, YES], False, [1, 1, 0]),
        ([RuntimeError("x"), YES], False, [1, 0]),
        ([None], False, [1]),
        ([ToolCallResult("yes")], False, [1]),  # type: ignore[arg-type]
        ([ToolCallResult(True, modified_arguments="{}")], False, [1]),  # type: ignore[arg-type]
    ],
)
def test_composite_ends_with_the_first_no(answers: list[Any], allowed: bool, asked: list[int]) -> None:
    says = [Says(a) for a in answers]
    chain = CompositeInterceptor()
    for s in says:
        assert chain.add(s) is chain
    assert chain.intercept(call()).allowed is allowed
    assert [len(s.seen) for s in says] == asked


def test_composite_judges_what_is_used() -> None:
    first, second = Says(YES), Says(ToolCallResult(True, modified_arguments={"q": "y"}))
    assert CompositeInterceptor([first, second]).intercept(call()).modified_arguments == {"q": "y"}
    assert first.seen == [{"q": "x"}, {"q": "y"}]


@pytest.mark.parametrize("told", [None, {"q": "x"}])
def test_composite_takes_no_change_that_is_not_told(told: dict[str, Any] | None) -> None:
    class Masks(Says):
        def intercept(self, request: ToolCallRequest) -> ToolCallResult:
            request.arguments.clear()
            return super().intercept(request)

    behind = Says(YES)
    result = CompositeInterceptor([Masks(ToolCallResult(True, modified_arguments=told)), behind]).intercept(call())
    assert (result.allowed, result.modified_arguments) == (True, told)
    assert behind.seen == [{"q": "x"}] * (1 if told is None else 2)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (ToolCallResult(True, "unsaid"), (True, "")),
        (ToolCallResult(False, "not by me"), (False, "not by me")),
        (ToolCallResult(False), (False, "Policy denied by evaluator")),
        (ValueError("boom"), (False, "Policy evaluation error (fail-closed): boom")),
    ],
)
def test_3_11_2_what_an_evaluator_comes_to(answer: Any, found: tuple[bool, str]) -> None:
    class Evaluator:
        def evaluate(self, context: dict[str, Any]) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    kernel = Kernel(evaluator=Evaluator())
    asked = kernel._build_cedar_context("a", "handoff", "t", {"q": 1})
    assert asked == {"agent_id": "a", "action_type": "handoff", "tool_name": "t", "tool_args": {"q": 1}}
    assert kernel._evaluate_policy(asked) == found
    assert Kernel()._evaluate_policy(asked) == (True, "")


class Guard:
    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    async def evaluate(self, *, tool_name: str, args: Any, **_: Any) -> GuardrailResult:
        self.asked.append(args)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


ALLOW = GuardrailResult(Decision.ALLOW, metadata={"a": 1})
DENY = GuardrailResult(Decision.DENY, "secrets")
MODIFY = GuardrailResult(Decision.MODIFY, modified_args={"q": "y"})


@pytest.mark.parametrize(
    ("answers", "decision", "args", "asked"),
    [
        ([], Decision.ALLOW, None, []),
        ([ALLOW, ALLOW], Decision.ALLOW, None, [1, 1]),
        ([ALLOW, DENY, ALLOW], Decision.DENY, None, [1, 1, 0]),
        ([MODIFY, ALLOW], Decision.MODIFY, {"q": "y"}, [1, 1]),
        ([MODIFY, DENY], Decision.DENY, None, [1, 1]),
        ([RuntimeError("x"), ALLOW], Decision.DENY, None, [1, 0]),
        ([None], Decision.DENY, None, [1]),
        ([True], Decision.DENY, None, [1]),
        ([GuardrailResult("allow")], Decision.DENY, None, [1]),  # type: ignore[arg-type]
        ([GuardrailResult(Decision.MODIFY, modified_args="x")], Decision.DENY, None, [1]),  # type: ignore[arg-type]
    ],
)
def test_guardrails(answers: list[Any], decision: Decision, args: Any, asked: list[int]) -> None:
    guards = [Guard(a) for a in answers]
    result = asyncio.run(evaluate_chain(guards, tool_name="t", args={"q": "x"}))
    assert (result.decision, result.modified_args) == (decision, args)
    assert [len(g.asked) for g in guards] == asked
    intercepted = GuardrailInterceptor(guards).intercept(call())
    assert (intercepted.allowed, intercepted.modified_arguments) == (decision is not Decision.DENY, args)
    if decision is Decision.DENY:
        assert intercepted.reason == denial(result)


def test_guardrails_are_asked_on_a_loop_too() -> None:
    async def main() -> ToolCallResult:
        return GuardrailInterceptor([Guard(DENY)]).intercept(call())

    assert asyncio.run(main()).reason == "Tool call denied: secrets"


def test_semaphore() -> None:
    with pytest.raises(ValueError, match="max_concurrent"):
        BoundedSemaphore(0)
    semaphore = BoundedSemaphore(3, 2)
    taken = [semaphore.try_acquire()[0] for _ in range(4)]
    assert taken == [True, True, True, False]
    assert semaphore.stats() == {
        "active": 3,
        "max_concurrent": 3,
        "available": 0,
        "under_pressure": True,
        "total_acquired": 3,
        "total_rejected": 1,
    }
    for _ in range(5):
        semaphore.release()
    assert (semaphore.active, semaphore.available, semaphore.is_under_pressure) == (0, 3, False)


@pytest.mark.parametrize(
    ("output", "score", "exceeded"), [("aaaa", 0.0, False), ("zzzz", 1.0, True), ("aaab", 0.25, True), ("", 1.0, True)]
)
def test_drift(output: str, score: float, exceeded: bool) -> None:
    ctx = ExecutionContext("a", "s", GovernancePolicy())
    assert Kernel.compute_drift(ctx, "aaaa") is None
    found = Kernel.compute_drift(ctx, output)
    assert found is not None
    assert (found.score, found.exceeded, found.threshold) == (score, exceeded, 0.15)
    assert (found.baseline_hash == found.current_hash) is (output == "aaaa")


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("hello", "hello"),
        ("mail jane@example.org", "[REDACTED]"),
        ("123-45-6789", "[REDACTED]"),
        ("Password: hunter2", "[REDACTED]"),
        ('{"api_key": "x"}', "[REDACTED]"),
        ({"token": 5, "q": ["a@b.org", 1]}, {"token": "[REDACTED]", "q": ["[REDACTED]", 1]}),
        ({"a@b.org": 1}, {"[REDACTED]": 1}),
        (True, True),
    ],
)
def test_redaction(value: Any, kept: Any) -> None:
    assert redacted(value) == kept


def test_redaction_is_bounded() -> None:
    deep: list[Any] = []
    deep.append(deep)
    assert "..." in str(redacted(deep))
    assert len(redacted("x" * 5000)) < 1100


def test_records_are_bounded_and_told(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []
    kernel = Kernel(on_violation=lambda e: told.append((e.category, e.tool_name)))
    for _ in range(MOST + 5):
        kernel._record("x", call(), kind="tool", kept=True)
    assert len(kernel.audit_log) == MOST
    assert kernel.get_stats()["total_tool_calls"] == MOST + 5
    kernel._violated("no", "c", "t")
    assert told == [("c", "t")]

    def fails(_: Any) -> None:
        raise RuntimeError("told badly")

    kernel.on_violation = fails
    with caplog.at_level(logging.WARNING):
        kernel._violated("no", "c", "t")
    assert "on_violation failed" in caplog.text
    assert len(kernel.get_violations()) == 2


def test_what_was_cancelled_last_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was cancelled long before is forgotten, lest it become ever more."""
    monkeypatch.setattr(_ids, "MOST_KEPT", 3)
    requests, runs = AnthropicKernel(), OpenAIKernel()
    for i in range(50):
        requests.cancel_request(f"r{i}")
        runs.cancel_run("thread", f"r{i}", None)  # which fails at the provider, and holds here
        assert requests.is_cancelled(f"r{i}")
        assert runs.is_cancelled(f"r{i}")
    for kernel in (requests, runs):
        assert [kernel.is_cancelled(f"r{i}") for i in (46, 47, 48, 49)] == [False, True, True, True]
    requests.cancel_request("r47")
    requests.cancel_request("r50")
    assert requests._cancelled_requests == {"r47", "r49", "r50"}
    requests._cancelled_requests.discard("r49")
    assert len(requests._cancelled_requests) == 2
