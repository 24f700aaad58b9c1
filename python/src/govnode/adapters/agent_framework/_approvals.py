"""Approvals: what the service asks people about becomes a prompt of the framework, and what they answer a vote."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeGuard

from agent_framework import Content, ToolApprovalMiddleware

from ... import messages
from ...client import AsyncClient, Client
from ...errors import Rejected
from .._gate import Passage, on_loop
from ._state import MONTH

log = logging.getLogger("govnode")

_ALWAYS = "tool_approval"  # in an answer: that it is to hold from now on
_APPROVAL = "govnode_approval"  # in a prompt: the id of the approval that it stands for
_PROMPTS = "govnode_prompts"  # in the state of a session: those prompts, with their approval and their run
_ANSWERS = (
    "govnode_answers"  # there too: what people approved, and what is to hold from now on, by the id of the answer
)
_DECIDED = ("ALREADY_DECIDED", "ALREADY_VOTED", "NOT_FOUND")

Rule = Callable[[Any], bool | Awaitable[bool]]


class Asked(Passage):
    """A passage of a call that people are asked about."""

    denied: Any


def asked(passage: Passage) -> TypeGuard[Asked]:
    """Report whether people are asked about a call."""
    denied = passage.denied
    return denied is not None and denied.outcome == "APPROVAL_REQUIRED" and denied.approval is not None


class GovnodeApprovals(ToolApprovalMiddleware):
    """Puts the answers to prompts before the service, where they are votes on its approvals.

        approvals = GovnodeApprovals(client, approver="anna")
        agent = Agent(..., middleware=[approvals, GovnodeMiddleware(session, approvals=approvals)])
        first = await agent.run("clean up", session=conversation)
        for prompt in first.user_input_requests: ...  # prompt.to_function_approval_response(approved=True)

    ``client`` is one that may approve, and ``approver`` who answers: the agent may not be. A call that the policy asks
    about becomes a prompt; it may as well be decided elsewhere, and goes on when the agent runs again. Prompts come one
    at a time. Where the yes of one is not enough the call waits ``approval_wait`` for the others, and then the model is
    told. An answer made by ``create_always_approve_tool_response``, or by that with arguments, becomes a standing
    approval of the session too, for ``expiry`` seconds. ``auto_approval_rules`` look at a call first, and vote for it
    where one of them says True. A run needs an AgentSession: without one nothing is asked.
    """

    def __init__(
        self,
        client: Client | AsyncClient,
        *,
        approver: str,
        auto_approval_rules: Sequence[Rule] = (),
        expiry: float = MONTH,
        **options: Any,
    ) -> None:
        super().__init__(auto_approval_rules=auto_approval_rules, **options)
        self._client = on_loop(client)
        self._approver = approver
        self._rules = tuple(auto_approval_rules)
        self._expiry = expiry

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        """Note what was answered, vote where it is a no, and go on as the framework does."""
        if context.session is not None:
            state = context.session.state
            context.messages = [await self._noted(m, state) for m in context.messages]
        await super().process(context, call_next)

    def run_of(self, context: Any) -> str:
        """Return the run in which a call became a prompt that is answered now; it may have been in another process."""
        response = context.metadata.get("approval_response")
        state = context.session.state if context.session is not None else {}
        prompt = state.get(_PROMPTS, {}).get(response.id) if response is not None else None
        return str(prompt["run"]) if prompt else ""

    async def answered(self, context: Any, approval: messages.CallApproval) -> bool:
        """Vote for a call that a person at the prompt, or a rule, has approved, and report whether that was done."""
        response = context.metadata.get("approval_response")
        if response is not None:
            return await self.voted(context.session, response, approval)
        if await self._by_rule(_call_of(context)):
            await self._vote(approval.id, True, "automatic rule")
            return True
        return False

    async def voted(self, session: Any, response: Any, approval: messages.CallApproval) -> bool:
        """Vote for a call that a person at the prompt has approved, and let what it is to hold for stand.

        What only a rule of the framework approved is none: rules that hold here stand in the service.
        """
        state = session.state if session is not None else {}
        state.get(_PROMPTS, {}).pop(response.id, None)
        wanted = state.get(_ANSWERS, {}).pop(response.id, None)
        if wanted is None:
            return False
        voted = await self._vote(approval.id, True, "prompt")
        if wanted and voted is not None and voted.state == "APPROVED":
            await self._stand(voted, response.function_call, exact=wanted == "tool_with_arguments")
        return True

    def prompt(self, context: Any, approval: messages.CallApproval, run: str) -> Any:
        """Return what asks the person at the prompt, or None where there is nobody to ask, or who said yes already."""
        if context.session is None or "approval_response" in context.metadata:
            return None
        call = _call_of(context)
        id = call.id or call.call_id
        context.session.state.setdefault(_PROMPTS, {})[id] = {"approval": approval.id, "run": run}
        return Content.from_function_approval_request(
            id=id, function_call=call, additional_properties={_APPROVAL: approval.id}
        )

    async def _noted(self, message: Any, state: dict[str, Any]) -> Any:
        """Note the answers in a message, and return it as the framework is to see it."""
        contents = [
            await self._note(c, state) if c.type == "function_approval_response" else c for c in message.contents
        ]
        changed = copy.copy(message)
        changed.contents = contents
        return changed

    async def _note(self, response: Any, state: dict[str, Any]) -> Any:
        prompt = state.get(_PROMPTS, {}).get(response.id)
        if response.approved is not True:
            if prompt is not None:
                del state[_PROMPTS][response.id]
                await self._vote(prompt["approval"], False, "prompt")
            return response
        always = response.additional_properties.get(_ALWAYS)
        scope = always.get("always_approve") if isinstance(always, dict) else ""
        state.setdefault(_ANSWERS, {})[response.id] = scope or ""
        if prompt is None or not scope:
            return response
        kept = copy.copy(response)  # without a rule of the framework's own: that would outlive the one of the service
        kept.additional_properties = {k: v for k, v in response.additional_properties.items() if k != _ALWAYS}
        return kept

    async def _by_rule(self, call: Any) -> bool:
        for rule in self._rules:
            said = rule(call)
            if (await said if inspect.isawaitable(said) else said) is True:
                return True
        return False

    async def _vote(self, id: str, yes: bool, reason: str) -> messages.Approval | None:
        """Vote, and return what came of it; nothing where others had decided before: that stays."""
        vote = self._client.approve if yes else self._client.deny
        try:
            return await vote(id, approver=self._approver, reason=reason)
        except Rejected as e:
            if e.reason not in _DECIDED:
                raise
            log.info("govnode: the answer of %s to approval %s came late: %s", self._approver, id, e)
            return None

    async def _stand(self, approval: messages.Approval, call: Any, *, exact: bool) -> None:
        await self._client.put_standing_approval(
            "session",
            approval.session_id,
            approval.tool or call.name,
            dict(call.parse_arguments() or {}) if exact else None,
            expiry=self._expiry,
            server_label=approval.server_label,
        )


def _call_of(context: Any) -> Any:
    """Return a call as the model made it, with the arguments that were judged."""
    return Content.from_function_call(
        context.metadata["call_id"],
        context.function.name,
        arguments=plain(context.arguments),
        id=context.metadata.get("function_call_occurrence_id"),
    )


def plain(arguments: Any) -> dict[str, Any]:
    """Return arguments as a mapping: a model of pydantic is one too."""
    if hasattr(arguments, "model_dump"):
        dumped: dict[str, Any] = arguments.model_dump()
        return dumped
    return dict(arguments or {})
