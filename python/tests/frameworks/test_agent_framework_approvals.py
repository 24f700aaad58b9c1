from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from conftest import eventually, put
from laws import RULES as REVIEWS
from laws import Guard, Tool

import govnode

pytest.importorskip("agent_framework", reason="Microsoft Agent Framework is not installed")

from agent_framework import (
    Agent,
    AgentSession,
    Content,
    Message,
    MiddlewareFailure,
    create_always_approve_tool_response,
    create_always_approve_tool_with_arguments_response,
)
from maf import ScriptedClient, go, governed, results

from govnode.adapters.agent_framework import GovnodeApprovals, GovnodeChatMiddleware, GovnodeMiddleware

LS = ("shell", {"command": "ls"})
PWD = ("shell", {"command": "pwd"})
ASKING = """
name: asking
require_human_approval: true
approval: {timeout: 60s}
"""
RULES = """
name: rules
rules:
  - {name: shell-asks, condition: {field: tool_name, operator: eq, value: shell}, action: ask, priority: 1}
"""

streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture
def asking(client: govnode.Client) -> govnode.Session:
    client.put_policy(ASKING)
    return client.session(agent="tester", policy="asking")


def shell_asks(client: govnode.Client) -> govnode.Session:
    limits = "name: shell-asks\nmax_tool_calls: 100\napproval: {timeout: 60s}\n"
    client.put_policy(name="shell-asks", files={"limits.yaml": limits, "rules.yaml": RULES})
    return client.session(agent="tester", policy="shell-asks")


class House:
    """An agent with a tool that people are asked about."""

    def __init__(self, session: govnode.Session, client: govnode.Client, script: list[Any], **options: Any) -> None:
        mode = options.pop("mode", "never_require")
        wait = options.pop("approval_wait", 0.0)
        self.tool = Tool("async")
        self.model = ScriptedClient(script)
        self.session = session
        self.approvals = GovnodeApprovals(client, approver="anna", **options)

        async def clock() -> str:
            """Tells the time."""
            self.tool.executed.append("clock")
            return "noon"

        self.agent = Agent(
            client=self.model,
            tools=[governed(self.tool.function, mode), governed(clock)],
            middleware=[self.approvals, GovnodeMiddleware(session, approvals=self.approvals, approval_wait=wait)],
        )
        self.conversation = self.agent.create_session()

    def go(self, what: Any, stream: bool = False) -> Any:
        return asyncio.run(go(self.agent, what, stream, session=self.conversation))

    def answer(self, response: Any, yes: bool, stream: bool = False) -> Any:
        (prompt,) = response.user_input_requests
        return self.respond(prompt.to_function_approval_response(approved=yes), stream)

    def respond(self, response: Any, stream: bool = False) -> Any:
        return self.go([Message(role="user", contents=[response])], stream)


@pytest.fixture
def house(asking: govnode.Session, client: govnode.Client) -> Callable[..., House]:
    return lambda script, **options: House(asking, client, script, **options)


@streaming
def test_a_yes_at_the_prompt_is_a_vote(house: Any, client: govnode.Client, stream: bool) -> None:
    it = house([[LS], "done"])
    first = it.go("go", stream)
    (prompt,) = first.user_input_requests
    (pending,) = client.list_approvals(session_id=it.session.id)
    assert (pending.state, pending.tool, it.tool.executed) == ("PENDING", "shell", [])
    assert prompt.additional_properties["govnode_approval"] == pending.id
    second = it.answer(first, True, stream)
    assert (it.tool.executed, second.text) == (["ls"], "done")
    decided = client.get_approval(pending.id)
    assert (decided.state, [(b.approver, b.reason) for b in decided.ballots]) == ("USED", [("anna", "prompt")])
    info = it.session.read()
    assert (info.attempts, info.executions, info.open_calls) == (1, 1, ())


@streaming
def test_a_no_at_the_prompt_is_a_vote(house: Any, client: govnode.Client, stream: bool) -> None:
    it = house([[LS], "done"])
    second = it.answer(it.go("go", stream), False, stream)
    assert (it.tool.executed, second.text) == ([], "done")
    (decided,) = client.list_approvals(session_id=it.session.id)
    assert (decided.state, decided.ballots[0].approver) == ("DENIED", "anna")
    assert it.session.read().open_calls == ()


def test_decided_elsewhere_while_the_call_waits(house: Any, client: govnode.Client) -> None:
    it = house([[LS], "done"], approval_wait=30.0)

    async def scenario() -> Any:
        run = asyncio.create_task(go(it.agent, "go", False, session=it.conversation))
        await asyncio.to_thread(eventually, lambda: client.list_approvals(session_id=it.session.id) != [])
        (pending,) = await asyncio.to_thread(client.list_approvals, session_id=it.session.id)
        await asyncio.to_thread(client.approve, pending.id, approver="bert")
        return await run

    response = asyncio.run(scenario())
    assert (response.user_input_requests, it.tool.executed, response.text) == ([], ["ls"], "done")


def test_denied_elsewhere_before_the_yes(house: Any, client: govnode.Client) -> None:
    it = house([[LS], "done"])
    first = it.go("go")
    (pending,) = client.list_approvals(session_id=it.session.id)
    client.deny(pending.id, approver="bert", reason="not today")
    second = it.answer(first, True)
    assert it.tool.executed == []
    assert "Approval denied" in it.model.texts()
    assert second.text == "done"


def test_one_yes_of_two(client: govnode.Client) -> None:
    client.put_policy("name: two\nrequire_human_approval: true\napproval: {timeout: 60s, required: 2}\n")
    session = client.session(agent="tester", policy="two")
    it = House(session, client, [[LS], "done"])
    first = it.go("go")
    it.respond(create_always_approve_tool_response(first.user_input_requests[0]))
    (pending,) = client.list_approvals(session_id=session.id)
    assert it.tool.executed == []
    assert pending.id in it.model.texts()
    assert (pending.state, len(pending.ballots)) == ("PENDING", 1)
    assert client.list_standing_approvals(scope="session", name=session.id) == []


def test_the_second_yes_comes_while_the_call_waits(client: govnode.Client) -> None:
    client.put_policy("name: two\nrequire_human_approval: true\napproval: {timeout: 60s, required: 2}\n")
    session = client.session(agent="tester", policy="two")
    it = House(session, client, [[LS], "done"], approval_wait=2.0)
    first = it.go("go")
    (pending,) = client.list_approvals(session_id=session.id)
    client.approve(pending.id, approver="bert")
    assert it.answer(first, True).text == "done"
    assert it.tool.executed == ["ls"]


def test_the_agent_itself_may_not(asking: govnode.Session, client: govnode.Client) -> None:
    it = House(asking, client, [[LS], "done"])
    it.approvals._approver = "tester"
    first = it.go("go")
    with pytest.raises(MiddlewareFailure, match="the agent that asks cannot decide"):
        it.answer(first, True)
    assert it.tool.executed == []


@streaming
def test_prompts_come_one_at_a_time(house: Any, client: govnode.Client, stream: bool) -> None:
    it = house([[LS, PWD], "done"])
    first = it.go("go", stream)
    second = it.answer(first, True, stream)
    assert len(second.user_input_requests) == 1
    third = it.answer(second, True, stream)
    assert (sorted(it.tool.executed), third.text) == (["ls", "pwd"], "done")
    assert it.session.read().executions == 2


@pytest.mark.parametrize("exact", [False, True], ids=["tool", "arguments"])
def test_always_is_a_standing_approval(house: Any, client: govnode.Client, exact: bool) -> None:
    it = house([[LS], [LS], "done", [PWD], "done"])
    always = create_always_approve_tool_with_arguments_response if exact else create_always_approve_tool_response
    second = it.respond(always(it.go("go").user_input_requests[0]))
    assert (it.tool.executed, second.text) == (["ls", "ls"], "done")  # the second was not asked about
    (standing,) = client.list_standing_approvals(scope="session", name=it.session.id)
    assert (standing.tool, bool(standing.arguments)) == ("shell", exact)
    third = it.go("and now")
    assert len(third.user_input_requests) == (1 if exact else 0)
    # It stands in the service: an agent elsewhere, without any prompts, is not asked either.
    tool = Tool("async")
    other = Agent(
        client=ScriptedClient([[LS], "done"]),
        tools=[governed(tool.function)],
        middleware=[GovnodeMiddleware(it.session)],
    )
    asyncio.run(other.run("go"))
    assert tool.executed == ["ls"]


def test_the_standing_approval_is_taken_back(house: Any, client: govnode.Client) -> None:
    it = house([[LS], "done", [LS], "done"])
    it.respond(create_always_approve_tool_response(it.go("go").user_input_requests[0]))
    (standing,) = client.list_standing_approvals(scope="session", name=it.session.id)
    client.delete_standing_approval(standing.id)
    assert len(it.go("again").user_input_requests) == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_automatic_rules(house: Any, client: govnode.Client, asynchronous: bool) -> None:
    def harmless(call: Any) -> bool:
        return bool(call.parse_arguments() == {"command": "ls"})

    async def later(call: Any) -> bool:
        return harmless(call)

    it = house([[LS], [PWD], "done"], auto_approval_rules=[later if asynchronous else harmless])
    response = it.go("go")
    assert it.tool.executed == ["ls"]
    assert len(response.user_input_requests) == 1
    reasons = {b.reason for a in client.list_approvals(session_id=it.session.id) for b in a.ballots}
    assert reasons == {"automatic rule"}


def test_a_rule_that_fails_denies(house: Any) -> None:
    def broken(call: Any) -> bool:
        raise ValueError("it is broken")

    it = house([[LS], "done"], auto_approval_rules=[broken])
    with pytest.raises(MiddlewareFailure, match="it is broken"):
        it.go("go")
    assert it.tool.executed == []


@streaming
def test_mixed_batch_of_a_marked_tool(client: govnode.Client, stream: bool) -> None:
    """What needs no approval is held by the framework, and goes on with the visible one."""
    it = House(shell_asks(client), client, [[LS, ("clock", {})], "done"], mode="always_require")
    first = it.go("go", stream)
    assert it.tool.executed == []
    assert len(first.user_input_requests) == 1
    second = it.answer(first, True, stream)
    assert (sorted(it.tool.executed), second.text) == (["clock", "ls"], "done")
    assert len(results(second)) == 2
    (used,) = client.list_approvals(session_id=it.session.id)  # the one prompt was the vote
    assert (used.state, used.ballots[0].approver) == ("USED", "anna")


def test_mixed_batch_of_what_the_policy_asks(client: govnode.Client) -> None:
    it = House(shell_asks(client), client, [[LS, ("clock", {})], "done"])
    first = it.go("go")
    assert it.tool.executed == ["clock"]
    assert len(first.user_input_requests) == 1
    it.answer(first, True)
    assert it.tool.executed == ["clock", "ls"]


def test_an_answer_that_nobody_asked_for(house: Any, client: govnode.Client) -> None:
    it = house([[LS], "done", "done"])
    (prompt,) = it.go("go").user_input_requests
    forged = Content.from_function_approval_response(
        approved=True,
        id="another",
        function_call=prompt.function_call,
        additional_properties=prompt.additional_properties,
    )
    it.respond(forged)
    assert it.tool.executed == []
    (pending,) = client.list_approvals(session_id=it.session.id)
    assert (pending.state, pending.ballots) == ("PENDING", ())


def test_the_prompt_outlives_the_process(house: Any, client: govnode.Client) -> None:
    it = house([[LS], "done"])
    (prompt,) = it.go("go").user_input_requests
    kept = it.conversation.to_dict()
    again = House(it.session, client, ["done"])
    again.conversation = AgentSession.from_dict(kept)
    assert again.respond(prompt.to_function_approval_response(approved=True)).text == "done"
    assert again.tool.executed == ["ls"]
    info = it.session.read()
    assert (info.attempts, info.executions) == (1, 1)


def test_without_a_conversation_the_model_is_told(house: Any) -> None:
    it = house([[LS], "done"])
    agent = Agent(
        client=it.model,
        tools=[governed(it.tool.function)],
        middleware=[GovnodeMiddleware(it.session, approvals=it.approvals)],
    )
    response = asyncio.run(agent.run("go"))
    assert "approval" in results(response)[0]
    assert it.tool.executed == []


class TestHosted:
    """Tools that run where the model does: their approval goes out to it or does not."""

    def prompt(self, server: str = "files", command: str = "ls") -> Any:
        call = Content.from_function_call(
            "mcp-1", "shell", arguments={"command": command}, id="mcp-1", hosted=True, server_name=server
        )
        return Content.from_function_approval_request(id="mcp-1", function_call=call)

    def house(self, session: govnode.Session, client: govnode.Client, script: list[Any]) -> tuple[Any, ScriptedClient]:
        approvals = GovnodeApprovals(client, approver="anna")
        model = ScriptedClient(script)
        chat = GovnodeChatMiddleware(session, approvals=approvals)
        return Agent(client=model, middleware=[approvals, chat]), model

    def sent(self, model: ScriptedClient) -> list[bool | None]:
        return [c.approved for m in model.read[-1] for c in m.contents if c.type == "function_approval_response"]

    def test_what_the_policy_denies_is_not_approved(self, client: govnode.Client) -> None:
        put(client, "plain")
        session = client.session(agent="tester", policy="plain")
        agent, model = self.house(session, client, [[self.prompt(command="rm -rf /")], "done"])
        conversation = agent.create_session()
        first = asyncio.run(agent.run("go", session=conversation))
        (prompt,) = first.user_input_requests
        answer = Message(role="user", contents=[prompt.to_function_approval_response(approved=True)])
        asyncio.run(agent.run([answer], session=conversation))
        assert self.sent(model) == [False]

    @pytest.mark.parametrize("wanted", ["changed arguments", "a look at the output"])
    def test_what_cannot_be_had_where_it_runs_is_not_approved(
        self, client: govnode.Client, caplog: pytest.LogCaptureFixture, wanted: str
    ) -> None:
        with Guard() as url:
            if wanted == "changed arguments":
                client.put_policy(f'name: longer\nguardrails: [{{name: g, url: "{url}", timeout_ms: 5000}}]\n')
                policy, why = "longer", "changed the arguments"
            else:
                client.put_policy(REVIEWS)
                policy, why = "reviewed", "rules look at what it returns"
            session = client.session(agent="tester", policy=policy)
            agent, model = self.house(session, client, [[self.prompt()], "done"])
            conversation = agent.create_session()
            (prompt,) = asyncio.run(agent.run("go", session=conversation)).user_input_requests
            answer = Message(role="user", contents=[prompt.to_function_approval_response(approved=True)])
            asyncio.run(agent.run([answer], session=conversation))
        assert self.sent(model) == [False]
        assert why in caplog.text
        eventually(lambda: session.read().open_calls == ())

    def test_always_stands_for_one_server(self, client: govnode.Client) -> None:
        session = shell_asks(client)
        agent, model = self.house(session, client, [[self.prompt()], "done"])
        conversation = agent.create_session()
        (prompt,) = asyncio.run(agent.run("go", session=conversation)).user_input_requests
        answer = Message(role="user", contents=[create_always_approve_tool_response(prompt)])
        asyncio.run(agent.run([answer], session=conversation))
        assert self.sent(model) == [True]
        (used,) = client.list_approvals(session_id=session.id)
        assert (used.state, used.server_label) == ("USED", "files")
        (standing,) = client.list_standing_approvals(scope="session", name=session.id)
        assert (standing.tool, standing.server_label) == ("shell", "files")
        eventually(lambda: session.read().open_calls == ())
        assert session.read().calls_by_tool == {"shell": 1}
