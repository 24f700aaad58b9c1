"""What every kernel of the adapter contract must do, on its real framework and a real node: a test file makes a class.

class TestLangChainKernel(KernelLaws):
    driver = KernelDriver()
"""

from __future__ import annotations

import asyncio
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from conftest import eventually
from laws import Script, Seen, Tool, causes

import govnode
from govnode.integration import (
    BaseIntegration,
    FrameworkKernel,
    GovernanceEventType,
    GovernancePolicy,
    PolicyViolationError,
    ToolCallRequest,
    ToolCallResult,
)

_numbers = itertools.count()
LS: Script = [[("shell", {"command": "ls"})], "done"]
BOTH: Script = [[("shell", {"command": "ls"})], [("shell", {"command": "rm -rf /"})], "done"]


class KernelDriver:
    """Runs an agent under the hooks of a kernel. A test file says how."""

    kernel: type[FrameworkKernel]
    #: The factory of the hooks, by the contract's name.
    factory: str
    #: max_tool_calls where nothing is said.
    calls = 10
    modes: tuple[str, ...] = ("sync", "async")
    #: Whether the run ends where a tool is denied; else the model is told.
    denial_ends = False
    #: Whether requests to the model are calls, which may be denied too.
    asks_for_models = False
    #: Whether arguments can be changed on the way; else what would be changed is denied.
    changes = True
    #: Whether a blocked output of a tool is kept from the model.
    looks_at_outputs = True

    def make(self, client: govnode.Client, policy: dict[str, Any] | None = None, **options: Any) -> FrameworkKernel:
        """Return a kernel under a policy of its own."""
        named = GovernancePolicy(
            name=f"kernel-{next(_numbers)}", **{"blocked_patterns": ["rm -rf"], "max_concurrent": 50, **(policy or {})}
        )
        return self.new(named, client=client, **options)

    def new(self, policy: GovernancePolicy, **options: Any) -> FrameworkKernel:
        """Return a kernel under a policy."""
        return self.kernel(policy, **options)

    def run(
        self,
        kernel: FrameworkKernel,
        script: Script,
        tool: Callable[..., Any],
        mode: str,
        session_id: str | None = None,
    ) -> Seen:
        """Run an agent with one tool, ``shell(command)``, under what the factory returns."""
        if mode == "sync":
            return self.go(kernel, script, tool, session_id)
        return asyncio.run(self.ago(kernel, script, tool, session_id))

    def go(self, kernel: Any, script: Script, tool: Callable[..., Any], session_id: str | None) -> Seen:
        raise NotImplementedError

    async def ago(self, kernel: Any, script: Script, tool: Callable[..., Any], session_id: str | None) -> Seen:
        raise NotImplementedError

    def told(
        self,
        kernel: FrameworkKernel,
        script: Script,
        tool: Callable[..., Any],
        mode: str,
        session_id: str | None = None,
    ) -> str:
        """Run an agent, and return what was told of its last call: to the model, or by the error that ended the run."""
        try:
            seen = self.run(kernel, script, tool, mode, session_id)
        except Exception as e:
            found = [c for c in causes(e) if isinstance(c, govnode.errors.PolicyViolationError)]
            if not found or not (self.denial_ends or self.asks_for_models):
                raise
            return str(found[0])
        assert not self.denial_ends
        return seen.model_saw[-1]

    def wrapped(self, kernel: Any, script: Script, tool: Callable[..., Any]) -> tuple[Any, Any, Callable[[], Any]]:
        """Return an agent, what the deprecated ``wrap`` makes of it, and what runs that."""
        raise NotImplementedError


class KernelLaws:
    """The points of all kernels."""

    driver: KernelDriver

    @pytest.fixture
    def mode(self, request: pytest.FixtureRequest) -> str:
        mode: str = request.param
        if mode not in self.driver.modes:
            pytest.skip(f"this framework has no way to run that is {mode}")
        return mode

    every_mode = pytest.mark.parametrize("mode", ["sync", "async"], indirect=True)

    def test_defaults(self) -> None:
        kernel = self.driver.kernel()
        assert isinstance(kernel, BaseIntegration)
        assert kernel.policy == GovernancePolicy(max_tool_calls=self.driver.calls)
        assert callable(getattr(kernel, self.driver.factory))

    def test_missing_framework(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self.driver.kernel, "framework", "no_such_framework")
        kernel = self.driver.kernel()
        with pytest.raises(RuntimeError, match="pip install 'govnode"):
            getattr(kernel, self.driver.factory)()
        with pytest.warns(DeprecationWarning, match="Use"), pytest.raises(ImportError, match="pip install 'govnode"):
            self.wrap_nothing(kernel)

    def wrap_nothing(self, kernel: Any) -> None:
        kernel.wrap(object())

    @every_mode
    def test_allow_deny_and_records(self, client: govnode.Client, mode: str) -> None:
        told: list[PolicyViolationError] = []
        events: list[str] = []
        kernel = self.driver.make(client, on_violation=told.append)
        for event in GovernanceEventType:
            kernel.on(event, lambda _, name=event.value: events.append(name))  # type: ignore[misc]
        tool = Tool(mode)
        assert "rm -rf" in self.driver.told(kernel, BOTH, tool.function, mode)
        assert tool.executed == ["ls"]
        ctx = next(iter(kernel.contexts.values()))
        eventually(lambda: client.get_session(ctx.session_id).open_calls == ())
        assert client.get_session(ctx.session_id).executions >= 1
        assert ctx.call_count >= 1
        assert [c["tool_name"] for c in ctx.tool_calls] == ["shell"]
        refused = [e for e in kernel.get_audit_log() if not e["allowed"]]
        assert [e["tool_name"] for e in refused] == ["shell"]
        assert len(told) == len(kernel.get_violations()) == 1
        assert kernel.get_stats()["total_tool_calls"] == 1
        assert "policy_check" in events
        assert "policy_violation" in events

    @every_mode
    def test_count_is_shared_by_those_of_one_session(self, client: govnode.Client, mode: str) -> None:
        policy: dict[str, Any] = {"name": f"shared-{next(_numbers)}", "max_tool_calls": 100}
        tool = Tool(mode)
        session_id = f"shared-{next(_numbers)}-{mode}"

        def kernel() -> FrameworkKernel:
            limits = {"max_calls_per_tool": {"shell": 1}}
            return self.driver.new(GovernancePolicy(**policy), client=client, limits=limits)

        assert "ran ls" in self.driver.run(kernel(), LS, tool.function, mode, session_id).model_saw[0]
        assert "shell" in self.driver.told(kernel(), LS, tool.function, mode, session_id)
        assert tool.executed == ["ls"]

    @every_mode
    def test_interceptor_denies_and_changes(self, client: govnode.Client, mode: str) -> None:
        class Longer:
            def intercept(self, request: ToolCallRequest) -> ToolCallResult:
                if request.arguments["command"] == "no":
                    return ToolCallResult(False, "not here")
                return ToolCallResult(True, modified_arguments={"command": "ls -l"})

        tool = Tool(mode)
        kernel = self.driver.make(client, interceptors=[Longer()])
        assert "not here" in self.driver.told(kernel, [[("shell", {"command": "no"})], "done"], tool.function, mode)
        if self.driver.changes:
            self.driver.run(kernel, LS, tool.function, mode)
            assert tool.executed == ["ls -l"]
        else:
            self.driver.told(kernel, LS, tool.function, mode)
            assert tool.executed == []

    @every_mode
    def test_evaluator_that_fails_denies(self, client: govnode.Client, mode: str) -> None:
        class Broken:
            def evaluate(self, context: dict[str, Any]) -> Any:
                raise ValueError("boom")

        tool = Tool(mode)
        kernel = self.driver.make(client, evaluator=Broken())
        assert "fail-closed" in self.driver.told(kernel, LS, tool.function, mode)
        assert tool.executed == []

    @every_mode
    @pytest.mark.parametrize("yes", [True, False])
    def test_approval_callback_decides(self, client: govnode.Client, mode: str, yes: bool) -> None:
        asked: list[tuple[str, dict[str, Any]]] = []

        def callback(tool_name: str, arguments: dict[str, Any]) -> bool:
            asked.append((tool_name, arguments))
            return yes

        tool = Tool(mode)
        kernel = self.driver.make(client, {"require_human_approval": True}, approver=client, approval_callback=callback)
        (self.driver.run if yes else self.driver.told)(kernel, LS, tool.function, mode)
        assert asked if self.driver.asks_for_models and not yes else ("shell", {"command": "ls"}) in asked
        assert tool.executed == (["ls"] if yes else [])

    @every_mode
    def test_blocked_output_is_kept_from_the_model(self, client: govnode.Client, mode: str) -> None:
        if not self.driver.looks_at_outputs:
            pytest.skip("this factory of the contract does not look at outputs")
        ran: list[str] = []

        def shell(command: str) -> str:
            """Tells what nobody may know."""
            ran.append(command)
            return "it is FORBIDDEN-WORD"

        async def ashell(command: str) -> str:
            """Tells what nobody may know."""
            return shell(command)

        ashell.__name__ = "shell"
        kernel = self.driver.make(client, {"blocked_patterns": ["forbidden-word"]})
        told = self.driver.told(kernel, LS, shell if mode == "sync" else ashell, mode)
        assert ran == ["ls"]
        assert "FORBIDDEN-WORD" not in told
        ctx = next(iter(kernel.contexts.values()))
        assert client.get_session(ctx.session_id).open_calls == ()

    def test_killed_kernel_runs_nothing(self, client: govnode.Client) -> None:
        tool = Tool()
        kernel = self.driver.make(client)
        kernel.signal_kill("enough")
        mode = self.driver.modes[0]
        raised: list[BaseException] = []
        try:
            self.driver.run(kernel, LS, Tool(mode).function if mode == "async" else tool.function, mode)
        except Exception as e:  # some frameworks end the run, some tell the model
            raised = list(causes(e))
        assert not raised or any(isinstance(c, govnode.errors.PolicyViolationError) for c in raised)
        assert tool.executed == []

    def test_wrap_warns_and_governs(self, client: govnode.Client) -> None:
        kernel = self.driver.make(client)
        tool = Tool()
        with pytest.warns(DeprecationWarning, match=f"{type(kernel).__name__}.*Use {self.driver.factory}") as caught:
            agent, governed, run = self.driver.wrapped(kernel, LS, tool.function)
        assert [w.filename for w in caught if issubclass(w.category, DeprecationWarning)][-1].startswith("/")
        run()
        assert tool.executed == ["ls"]
        ctx = next(iter(kernel.contexts.values()))
        eventually(lambda: client.get_session(ctx.session_id).open_calls == ())
        assert client.get_session(ctx.session_id).executions >= 1
        assert kernel.unwrap(governed) is agent

    def test_wrapped_agent_that_is_denied_raises(self, client: govnode.Client) -> None:
        kernel = self.driver.make(client)
        tool = Tool()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            _, _, run = self.driver.wrapped(kernel, LS, tool.function)
        kernel.signal_stop()
        with pytest.raises(Exception) as raised:  # noqa: PT011
            run()
        assert any(isinstance(c, govnode.errors.PolicyViolationError) for c in causes(raised.value))
        assert tool.executed == []
