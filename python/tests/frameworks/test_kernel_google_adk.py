"""GoogleADKKernel (adapter contract 12) on the real framework and a real node."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import pytest
from conftest import eventually
from kernel_laws import BOTH, LS, KernelDriver, KernelLaws
from laws import RULES, Script, Seen, Tool, causes

import govnode
from govnode.integration import (
    FrameworkKernel,
    GovernanceEventType,
    GovernancePolicy,
    PolicyConfig,
    PolicyViolationError,
    ToolCallRequest,
    ToolCallResult,
)

pytest.importorskip("google.adk", reason="Google ADK is not installed")

from google.adk.agents import LoopAgent, SequentialAgent
from google.adk.models import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools import AgentTool
from google.genai import types
from test_google_adk import ADK, WHO, ScriptedLlm, said

from govnode.integrations import ADKExecutionContext, GoogleADKKernel

FRAMEWORK = ADK()


class GoogleADKKernelDriver(KernelDriver):
    kernel = GoogleADKKernel
    factory = "as_plugin"
    calls = 50
    asks_for_models = True  # runs of agents are calls, which may be denied too

    def told(self, kernel: FrameworkKernel, script: Script, tool: Any, mode: str, session_id: str | None = None) -> str:
        seen = self.run(kernel, script, tool, mode, session_id)
        return seen.model_saw[-1] if seen.model_saw else seen.final

    def go(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        return run(kernel.as_plugin("tester", session_id), FRAMEWORK.agent(script, tool))

    async def ago(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        runner = FRAMEWORK.runner([kernel.as_plugin("tester", session_id)], FRAMEWORK.agent(script, tool))
        return await FRAMEWORK.run_on(runner)

    def wrapped(self, kernel: Any, script: Script, tool: Any) -> tuple[Any, Any, Any]:
        agent = FRAMEWORK.agent(script, tool)
        governed = kernel.wrap(agent)
        return agent, governed, lambda: run(None, governed)


def run(plugin: Any, agent: Any, text: str = "go") -> Seen:
    """Run an agent on a thread of the framework's, as its synchronous way does."""
    runner = FRAMEWORK.runner([plugin] if plugin is not None else [], agent)
    asyncio.run(runner.session_service.create_session(app_name="laws", **WHO))
    return FRAMEWORK.seen(list(runner.run(**WHO, new_message=said(text))))


DRIVER = GoogleADKKernelDriver()


class TestGoogleADKKernel(KernelLaws):
    driver = DRIVER

    # 12.2: the configuration.

    def test_12_2_the_defaults_are_those_of_a_config(self) -> None:
        kernel = GoogleADKKernel()
        assert kernel.config == PolicyConfig()
        assert GoogleADKKernel(PolicyConfig(max_tool_calls=3)).policy.max_tool_calls == 3

    def test_12_2_a_config_is_made_of_the_arguments(self) -> None:
        given: dict[str, Any] = {
            "max_tool_calls": 7,
            "max_agent_calls": 3,
            "timeout_seconds": 9,
            "allowed_tools": ["a", "b"],
            "blocked_tools": ["c"],
            "blocked_patterns": ["x"],
            "pii_detection": False,
            "log_all_calls": False,
            "require_human_approval": True,
            "sensitive_tools": ["b"],
        }
        assert GoogleADKKernel(**given).config == PolicyConfig(**given)
        assert GoogleADKKernel(max_budget=5.0, cost=1.0).config == PolicyConfig(max_budget=5.0)
        for name, value in given.items():
            with pytest.raises(ValueError, match=name):
                GoogleADKKernel(PolicyConfig(), **{name: value})
        with pytest.raises(ValueError, match="sensitive_tools"):
            GoogleADKKernel(GovernancePolicy(), sensitive_tools=["b"])

    def test_12_2_blocked_tools_and_a_list_of_allowed_ones(self, client: govnode.Client) -> None:
        named = [
            ({"blocked_tools": ["shell"]}, "blocked"),
            ({"allowed_tools": ["other"]}, "shell"),
            ({"policy": GovernancePolicy(name="adk-blocks"), "blocked_tools": ["shell"]}, "blocked"),
        ]
        for options, why in named:
            tool = Tool()
            kernel = GoogleADKKernel(client=client, **options)  # type: ignore[arg-type]
            assert why in DRIVER.told(kernel, LS, tool.function, "sync")
            assert tool.executed == []

    def test_12_2_personal_data_is_denied(self, client: govnode.Client) -> None:
        script: Script = [[("shell", {"command": "mail jane@example.org"})], "done"]
        for detection, executed in ((True, []), (False, ["mail jane@example.org"])):
            tool = Tool()
            DRIVER.run(GoogleADKKernel(client=client, pii_detection=detection), script, tool.function, "sync")
            assert tool.executed == executed

    def test_12_2_what_is_not_logged_is_not_taken_down(self, client: govnode.Client) -> None:
        kernel = GoogleADKKernel(client=client, log_all_calls=False, blocked_patterns=["rm -rf"])
        DRIVER.run(kernel, BOTH, Tool().function, "sync")
        assert [e["allowed"] for e in kernel.get_audit_log()] == [False]

    @pytest.mark.parametrize("yes", [True, False])
    def test_12_2_people_are_asked_about_sensitive_tools(self, client: govnode.Client, yes: bool) -> None:
        asked: list[str] = []

        def decide(tool_name: str, arguments: dict[str, Any]) -> bool:
            asked.append(tool_name)
            return yes

        tool = Tool()
        kernel = GoogleADKKernel(client=client, sensitive_tools=["shell"], approver=client, approval_callback=decide)
        told = DRIVER.told(kernel, LS, tool.function, "sync")
        assert asked == ["shell"]
        assert tool.executed == (["ls"] if yes else [])
        assert yes or "approval" in told

    def test_12_2_an_agent_that_was_approved_runs_under_the_id_that_was(self, client: govnode.Client) -> None:
        kernel: Any = DRIVER.make(client, {"require_human_approval": True}, approver=client)
        plugin = kernel.as_plugin("tester")
        assert "approval" in run(plugin, FRAMEWORK.agent(["done"])).final
        (waiting,) = kernel.get_pending_approvals()
        assert kernel.approve(waiting)
        assert run(plugin, FRAMEWORK.agent(["done"])).final == "done"
        assert "approval" in run(plugin, FRAMEWORK.agent(["done"])).final

    def test_12_2_a_budget(self, client: govnode.Client) -> None:
        tool = Tool()
        script: Script = [[("shell", {"command": str(i)})] for i in range(3)]
        kernel = GoogleADKKernel(client=client, max_budget=2.0, cost=lambda r: 1.0 if r.tool_name else 0.0)
        told = DRIVER.told(kernel, [*script, "done"], tool.function, "sync")
        assert tool.executed == ["0", "1"]
        assert "budget" in told.lower()

    # 12.3: the callbacks.

    def test_12_3_1_tools_are_judged_before_and_their_outputs_after(self, client: govnode.Client) -> None:
        """What is blocked in a nested output is kept from the model, and what drifts is told of."""

        def shell(command: str) -> dict[str, Any]:
            """Gives more than a text."""
            return {"lines": [{"text": "open SESAME" if command == "open" else command * 40}]}

        kernel = DRIVER.make(client, {"blocked_patterns": ["open sesame"]})
        drifts: list[Any] = []
        kernel.on(GovernanceEventType.DRIFT_DETECTED, drifts.append)
        script: Script = [[("shell", {"command": c})] for c in ("ls", "open", "nothing like it")]
        seen = DRIVER.run(kernel, [*script, "done"], shell, "async")
        assert "lsls" in seen.model_saw[0]
        assert "SESAME" not in seen.model_saw[1]
        assert "Denied by govnode" in seen.model_saw[1]
        assert seen.final == "done"
        assert drifts

    def test_12_3_1_private_data_in_an_output_is_redacted(self, client: govnode.Client) -> None:
        def shell(command: str) -> dict[str, Any]:
            """Tells who."""
            return {"who": ["jane@example.org", 1], "ok": True}

        seen = DRIVER.run(DRIVER.make(client), LS, shell, "sync")
        assert "jane@example.org" not in seen.model_saw[0]
        assert "'ok': True" in seen.model_saw[0]

    def test_what_rules_leave_of_an_output_is_what_the_model_reads(self, client: govnode.Client) -> None:
        client.put_policy(RULES)
        kernel = DRIVER.new(cast(Any, "reviewed"), client=client)
        tool = Tool("sync")
        script: Script = [[("shell", {"command": c})] for c in ("sk-abc", "salary", "ls")]
        seen = DRIVER.run(kernel, [*script, "done"], tool.function, "sync")
        assert tool.executed == ["sk-abc", "salary", "ls"]
        redacted, suppressed, plain = seen.model_saw
        assert "ran [REDACTED]" in redacted
        assert "sk-abc" not in redacted
        assert "[OUTPUT SUPPRESSED]" in suppressed
        assert "ran salary" not in suppressed
        assert "ran ls" in plain

    def test_12_3_1_what_goes_to_the_model_is_looked_at(self, client: govnode.Client) -> None:
        for agent, text in (
            (FRAMEWORK.agent(["done"]), "Open Sesame, please"),
            (FRAMEWORK.agent(["done"], instruction="Say open sesame"), "go"),
            (FRAMEWORK.agent(["Open Sesame"]), "go"),
        ):
            kernel: Any = DRIVER.make(client, {"blocked_patterns": ["open sesame"]})
            with pytest.raises(RuntimeError) as raised:
                run(kernel.as_plugin(), agent, text)
            assert any(isinstance(c, PolicyViolationError) for c in causes(raised.value))
            ctx = kernel.contexts["google-adk"]
            eventually(lambda id=ctx.session_id: client.get_session(id).open_calls == ())  # type: ignore[misc]
            assert client.get_session(ctx.session_id).failures == 1

    def test_12_3_1_private_data_comes_redacted_to_the_model(self, client: govnode.Client) -> None:
        read: list[str] = []

        class Reading(ScriptedLlm):
            async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
                read.append(str(llm_request.contents))
                async for response in super().generate_content_async(llm_request, stream):
                    yield response

        kernel: Any = DRIVER.make(client)
        agent = FRAMEWORK.agent([])
        agent.model = Reading(model="scripted", script=["call jane@example.org"])
        seen = run(kernel.as_plugin(), agent, "write to jane@example.org")
        assert "write to" in read[0]
        assert "jane@example.org" not in read[0] + seen.final

    def test_12_3_1_a_stream_is_looked_at_as_it_comes(self, client: govnode.Client) -> None:
        pieces: list[str] = []

        class Streaming(ScriptedLlm):
            async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
                for piece in self.script:
                    pieces.append(piece)
                    yield response(piece, partial=True)
                yield response("".join(self.script))

        def stream(*script: str) -> Any:
            kernel: Any = DRIVER.make(client, {"blocked_patterns": ["open sesame"]})
            agent = FRAMEWORK.agent([])
            agent.model = Streaming(model="scripted", script=list(script))
            return run(kernel.as_plugin(), agent)

        assert stream("all ", "fine").final == "all fine"
        pieces.clear()
        with pytest.raises(RuntimeError) as raised:
            stream("op", "en ses", "ame", " and more")
        assert any(isinstance(c, PolicyViolationError) for c in causes(raised.value))
        assert pieces[-1] == "ame"

    def test_12_3_1_a_refusal_may_be_shown_to_other_agents(self, client: govnode.Client) -> None:
        """ADK tells them in a text what was called, and what came of it."""

        class Quotes:
            def intercept(self, request: ToolCallRequest) -> ToolCallResult:
                return ToolCallResult(request.arguments["command"] != "no", """don't say "rm -rf" here""")

        tool = Tool()
        script: Script = [[("shell", {"command": c})] for c in ("rm -rf 'it' /", "no")]
        first = FRAMEWORK.agent([*script, "first"], tool.function, name="first")
        second = FRAMEWORK.agent(["second"], name="second")
        kernel: Any = DRIVER.make(client, interceptors=[Quotes()])
        seen = run(kernel.as_plugin("tester"), SequentialAgent(name="both", sub_agents=[first, second]))
        assert all("rm -rf" in told for told in seen.model_saw)
        assert tool.executed == []
        assert seen.final == "second"

    # 12.4: the limits.

    def test_12_4_max_tool_calls(self, client: govnode.Client) -> None:
        tool = Tool()
        script: Script = [[("shell", {"command": str(i)})] for i in range(3)]
        kernel = GoogleADKKernel(client=client, max_tool_calls=2)
        told = DRIVER.told(kernel, [*script, "done"], tool.function, "sync")
        assert tool.executed == ["0", "1"]
        assert "2" in told

    @pytest.mark.parametrize("named", [True, False])
    def test_12_4_max_agent_calls(self, client: govnode.Client, named: bool) -> None:
        """Each run of an agent counts, one in a tool too; those beyond the limit say why they did not run."""
        helper = FRAMEWORK.agent(["one", "two"], name="helper")
        script: Script = [[("helper", {"request": "a"})], [("helper", {"request": "b"})], "done"]
        policy = GovernancePolicy(name="adk-agents") if named else None
        kernel = GoogleADKKernel(policy, client=client, max_agent_calls=2)
        seen = run(kernel.as_plugin("tester"), FRAMEWORK.agent(script, AgentTool(helper)))
        assert "one" in seen.model_saw[0]
        assert "Max agent calls exceeded (2)" in seen.model_saw[1]
        assert seen.final == "done"
        info = client.get_session(kernel.contexts["tester"].session_id)
        assert info.kind_counters is not None
        assert (info.kind_counters.agent_calls, info.open_calls) == (2, ())

    def test_12_4_the_default_limit_of_agents_ends_loops(self, client: govnode.Client) -> None:
        kernel = GoogleADKKernel(client=client)
        inner = FRAMEWORK.agent([f"turn {i}" for i in range(30)], name="inner")
        seen = run(kernel.as_plugin("tester"), LoopAgent(name="forever", sub_agents=[inner]))
        assert "Max agent calls exceeded (20)" in seen.final
        info = client.get_session(kernel.contexts["tester"].session_id)
        assert info.kind_counters is not None
        assert (info.kind_counters.agent_calls, info.open_calls) == (20, ())

    # Whatever becomes of an agent, its call ends.

    def test_12_3_1_agents_that_others_answer_for_leave_no_call_open(self, client: govnode.Client) -> None:
        class Answers(BasePlugin):
            async def after_agent_callback(self, **_: Any) -> Any:
                return types.Content(role="model", parts=[types.Part(text="mine")])

        def before(callback_context: Any) -> Any:
            return types.Content(role="model", parts=[types.Part(text="mine")])

        for plugins, more in (([Answers(name="answers")], {}), ([], {"before_agent_callback": before})):
            kernel: Any = DRIVER.make(client)
            runner = FRAMEWORK.runner([*plugins, kernel.as_plugin("tester")], FRAMEWORK.agent(["done"], **more))
            assert asyncio.run(FRAMEWORK.run_on(runner)).final == "mine"
            id = kernel.contexts["tester"].session_id
            eventually(lambda id=id: client.get_session(id).open_calls == ())  # type: ignore[misc]
            assert client.get_session(id).executions == 1

    @pytest.mark.parametrize("wrapped", [True, False])
    @pytest.mark.parametrize("how", ["cancel", "close"])
    def test_12_3_1_agents_that_are_cancelled_leave_no_call_open(
        self, client: govnode.Client, how: str, wrapped: bool
    ) -> None:
        kernel: Any = DRIVER.make(client)

        async def scenario() -> None:
            started = asyncio.Event()

            async def shell(command: str) -> str:
                """Never ends."""
                started.set()
                await asyncio.Event().wait()
                return ""

            agent = FRAMEWORK.agent(LS, shell, name="tester")
            with pytest.warns(DeprecationWarning, match="as_plugin") if wrapped else contextlib.nullcontext():
                plugins = [] if wrapped and kernel.wrap(agent) else [kernel.as_plugin("tester")]
            runner = FRAMEWORK.runner(plugins, agent)
            id = kernel.contexts["tester"].session_id
            if how == "cancel":
                task = asyncio.create_task(FRAMEWORK.run_on(runner))
                await started.wait()
                assert len(client.get_session(id).open_calls) == 2
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            else:
                await runner.session_service.create_session(app_name="laws", **WHO)
                events = runner.run_async(**WHO, new_message=said("go"))
                await anext(events)
                await events.aclose()
            await asyncio.to_thread(eventually, lambda: client.get_session(id).open_calls == ())

        asyncio.run(scenario())

    # 12.5: the context.

    def test_12_5_the_context(self, client: govnode.Client) -> None:
        class Counted(ScriptedLlm):
            async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
                async for answer in super().generate_content_async(llm_request, stream):
                    answer.usage_metadata = types.GenerateContentResponseUsageMetadata(
                        prompt_token_count=7, candidates_token_count=2, thoughts_token_count=1
                    )
                    yield answer

        kernel: Any = DRIVER.make(client)
        agent = FRAMEWORK.agent(LS, Tool().function)
        agent.model = Counted(model="scripted", script=LS)
        runner = FRAMEWORK.runner([kernel.as_plugin("tester")], SequentialAgent(name="outer", sub_agents=[agent]))
        asyncio.run(runner.session_service.create_session(app_name="laws", **WHO))
        events = list(runner.run(**WHO, new_message=said("go")))
        ctx = kernel.contexts["tester"]
        assert isinstance(ctx, ADKExecutionContext)
        assert ctx.invocation_id == events[-1].invocation_id
        assert ctx.agent_names == ["outer", "worker"]
        assert (ctx.prompt_tokens, ctx.completion_tokens) == (14, 6)
        assert ctx.call_count == client.get_session(ctx.session_id).executions == 3

    def test_12_3_an_output_that_cannot_be_looked_at_is_not_shown(self, client: govnode.Client) -> None:
        async def shell(command: str) -> dict[str, Any]:
            """Is deeper than what writes JSON goes."""
            result: dict[str, Any] = {"found": "here"}
            for _ in range(300):
                result = {"in": result}
            return result

        kernel: Any = DRIVER.make(client)
        (shown,) = run(kernel.as_plugin("tester"), FRAMEWORK.agent(LS, shell)).model_saw
        assert "what shell returns cannot be looked at" in shown
        assert "here" not in shown

    # 18: the old way.

    def test_18_a_wrapped_agent_is_governed_with_all_below_it(self, client: govnode.Client) -> None:
        mine: list[str] = []

        def before(tool: Any, args: Any, tool_context: Any) -> None:
            mine.append(args["command"])

        def leaf(name: str, **more: Any) -> tuple[Any, Tool]:
            tool = Tool()
            script: Script = [[("shell", {"command": "rm -rf /"})], "done"]
            return FRAMEWORK.agent(script, tool.function, name=name, **more), tool

        def in_tool(inner: Any) -> Any:
            return FRAMEWORK.agent([[(inner.name, {"request": "go"})], "done"], AgentTool(inner), name="outer")

        def below(inner: Any) -> Any:
            return SequentialAgent(name="outer", sub_agents=[inner])

        for outer in (in_tool, below):
            kernel: Any = DRIVER.make(client)
            inner, tool = leaf("inner", before_tool_callback=before)
            agent = outer(inner)
            with pytest.warns(DeprecationWarning, match="as_plugin"):
                assert kernel.wrap(agent) is agent
            with pytest.raises(Exception) as raised:  # noqa: PT011
                run(None, agent)
            assert any(isinstance(c, govnode.errors.PolicyViolationError) for c in causes(raised.value))
            assert tool.executed == []
            assert mine.pop() == "rm -rf /"
            id = kernel.contexts["outer"].session_id
            eventually(lambda id=id: client.get_session(id).open_calls == ())  # type: ignore[misc]
            assert kernel.unwrap(agent) is agent
            assert inner.before_tool_callback is before
            assert inner.after_tool_callback is agent.before_agent_callback is None

    def test_18_agents_that_are_wrapped_apart_run_in_one_app(self, client: govnode.Client) -> None:
        """The runner of an agent that is a tool has the plugins of the first one, each by its name."""
        inner = FRAMEWORK.agent([[("shell", {"command": "ls"})], "done"], Tool().function, name="inner")
        second = FRAMEWORK.agent([[("inner", {"request": "go"})], "all done"], AgentTool(inner), name="second")
        first = FRAMEWORK.agent([[("shell", {"command": "ls"})], "done"], Tool().function, name="first")
        outer = SequentialAgent(name="outer", sub_agents=[first, second])
        for agent in (first, second):
            with pytest.warns(DeprecationWarning, match="as_plugin"):
                DRIVER.make(client).wrap(agent)
        assert run(None, outer).final == "all done"

    def test_18_who_could_change_what_was_judged_is_refused(self, client: govnode.Client) -> None:
        tool = Tool()
        agent = FRAMEWORK.agent(LS, tool.function)
        kernel: Any = DRIVER.make(client)
        with pytest.warns(DeprecationWarning, match="as_plugin"):
            kernel.wrap(agent)
        agent.before_tool_callback.append(lambda tool, args, tool_context: args.update(command="rm -rf /"))
        assert "could change what was judged" in run(None, agent).model_saw[0]
        assert tool.executed == []


def response(text: str, **more: Any) -> Any:
    return LlmResponse(content=types.Content(role="model", parts=[types.Part(text=text)]), **more)
