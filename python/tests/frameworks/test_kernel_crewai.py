"""CrewAIKernel (adapter contract 8) on the real framework and a real node."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from kernel_laws import BOTH, LS, KernelDriver, KernelLaws
from laws import Script, Seen, Tool, causes

import govnode
from govnode.integration import PolicyViolationError

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false", OTEL_SDK_DISABLED="true")
pytest.importorskip("crewai", reason="CrewAI is not installed")

from test_crewai import CrewAI, TextCrewAI

from govnode.integrations import CrewAIKernel

pytestmark = pytest.mark.filterwarnings("ignore:.*pydantic.*:DeprecationWarning")


class CrewAIKernelDriver(KernelDriver):
    kernel = CrewAIKernel
    factory = "as_hooks"
    crews = CrewAI()

    def go(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        crew, llm = self.crews.crew(script, tool)
        with kernel.as_hooks("tester", session_id):
            result = crew.kickoff()
        return Seen(llm.results(), result.raw)

    async def ago(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        crew, llm = self.crews.crew(script, tool)
        with kernel.as_hooks("tester", session_id):
            result = await crew.akickoff()
        return Seen(llm.results(), result.raw)

    def wrapped(self, kernel: Any, script: Script, tool: Any) -> tuple[Any, Any, Any]:
        crew, _ = self.crews.crew(script, tool)
        governed = kernel.wrap(crew)
        return crew, governed, governed.kickoff


class TextDriver(CrewAIKernelDriver):
    crews = TextCrewAI()


DRIVER = CrewAIKernelDriver()


class TestCrewAIKernel(KernelLaws):
    driver = DRIVER

    def test_8_3_registered_hooks_govern_the_process(self, client: govnode.Client) -> None:
        kernel: Any = DRIVER.make(client)
        hooks = kernel.as_hooks()
        tool = Tool()
        assert hooks.register() is hooks
        try:
            with pytest.raises(RuntimeError, match="unregister"):
                kernel.as_hooks().register()
            crew, _ = DRIVER.crews.crew(BOTH, tool.function)
            crew.kickoff()
            assert tool.executed == ["ls"]
        finally:
            hooks.unregister()
        crew, _ = DRIVER.crews.crew(BOTH, tool.function)
        crew.kickoff()
        assert tool.executed == ["ls", "ls", "rm -rf /"]
        other = kernel.as_hooks().register()
        other.unregister()

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_8_2_what_goes_to_the_model_is_looked_at(self, client: govnode.Client, mode: str) -> None:
        kernel = DRIVER.make(client, {"blocked_patterns": ["backstory-of-evil"]})
        tool = Tool()
        crew, llm = DRIVER.crews.crew(["done"], tool.function)
        crew.tasks[0].description = "the Backstory-of-Evil"
        hooks = kernel.as_hooks()  # type: ignore[attr-defined]
        with hooks, pytest.raises(Exception) as raised:  # noqa: PT011
            crew.kickoff() if mode == "sync" else asyncio.run(crew.akickoff())
        assert any(isinstance(c, PolicyViolationError) for c in causes(raised.value))
        assert llm.turn == 0

    def test_8_2_private_data_comes_redacted_to_the_model(self, client: govnode.Client) -> None:
        kernel: Any = DRIVER.make(client)
        crew, llm = DRIVER.crews.crew(["done"], Tool().function)
        crew.tasks[0].description = "write to jane@example.org"
        with kernel.as_hooks():
            crew.kickoff()
        assert not any("jane@example.org" in str(m["content"]) for m in llm.seen)

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_8_2_what_the_model_says_is_looked_at(self, client: govnode.Client, mode: str) -> None:
        kernel: Any = DRIVER.make(client)
        crew, _ = DRIVER.crews.crew(["rm -rf / is the answer"], Tool().function)
        with kernel.as_hooks(), pytest.raises(Exception) as raised:  # noqa: PT011
            crew.kickoff() if mode == "sync" else asyncio.run(crew.akickoff())
        assert any(isinstance(c, PolicyViolationError) for c in causes(raised.value))
        assert len(kernel.get_violations()) == 1

    def test_8_2_the_text_protocol(self, client: govnode.Client) -> None:
        """What the model says holds the arguments of its call, so that this ends the run."""
        kernel = DRIVER.make(client)
        tool = Tool()
        driver = TextDriver()
        assert driver.run(kernel, LS, tool.function, "sync").final == "done"
        with pytest.raises(Exception) as raised:  # noqa: PT011
            driver.run(kernel, BOTH, tool.function, "sync")
        assert any(isinstance(c, PolicyViolationError) for c in causes(raised.value))
        assert tool.executed == ["ls", "ls"]

    @pytest.mark.parametrize("mode", ["kickoff", "kickoff_async", "akickoff", "kickoff_for_each"])
    def test_8_4_all_kickoffs_of_a_wrapped_crew(self, client: govnode.Client, mode: str) -> None:
        kernel: Any = DRIVER.make(client)
        tool = Tool()
        with pytest.warns(DeprecationWarning, match="as_hooks"):
            governed = kernel.wrap(DRIVER.crews.crew([*BOTH[:2]], tool.function)[0])
        ways: dict[str, Any] = {
            "kickoff": governed.kickoff,
            "kickoff_async": lambda: asyncio.run(governed.kickoff_async()),
            "akickoff": lambda: asyncio.run(governed.akickoff()),
            "kickoff_for_each": lambda: governed.kickoff_for_each([{}]),
        }
        with pytest.raises(Exception) as raised:  # noqa: PT011
            ways[mode]()
        assert any(isinstance(c, govnode.errors.PolicyViolationError) for c in causes(raised.value))
        assert tool.executed == ["ls"]
        assert client.get_session(kernel.contexts["crewai"].session_id).open_calls == ()
