"""Requests to models: each is a call of the kind ``model``. Texts are looked at, and hosted tools are judged, here."""

from __future__ import annotations

import copy
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from agent_framework import ChatMiddleware, ChatResponse, ChatResponseUpdate, Content, Message, ResponseStream

from .._gate import Gate, Passage, Sessions
from ._approvals import GovnodeApprovals, asked
from ._ends import ending, failure, tokens_of, told, was_told

log = logging.getLogger("govnode")

_MOST_SEEN = 10_000


class GovnodeChatMiddleware(ChatMiddleware):
    """Makes a call of the kind ``model`` of each request, with the tokens that it took.

    A request that is denied is answered with the reason in the place of the model, and that of a killed session ends
    the run with MiddlewareFailure, as with ``on_denied="raise"`` every one that is denied. With ``scan=True`` the
    policy looks at each text that goes to the model and at what it says: what is blocked goes no further, personal data
    is redacted. A stream then comes as one piece, after it was looked at. A tool that the provider of the model runs
    (a hosted one) is judged where its approval goes out to it, with ``server_label``; with ``approvals`` the answer at
    the prompt is a vote. One whose arguments a guardrail changes, or whose output rules look at, is not approved: it
    runs there as the model called it. ``session`` and ``options`` are those of ``GovnodeMiddleware``.
    """

    def __init__(
        self, session: Sessions, *, scan: bool = False, approvals: GovnodeApprovals | None = None, **options: Any
    ) -> None:
        self.gate = Gate(session, **options)
        self._raises = self.gate.on_denied == "raise"
        self.gate.on_denied = "tell"
        self._scan = scan
        self._approvals = approvals
        self._seen: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        """Ask, have the texts looked at, and report the end of the request."""
        conversation = context.session.session_id if context.session is not None else ""
        hosted: list[Passage] = []
        passage: Passage | None = None
        try:
            context.messages = [await self._hosted(m, context.session, hosted) for m in context.messages]
            if self._scan:
                context.messages = [await self._looked(m, "input", conversation) for m in context.messages]
            passage = await self._ask(context, conversation)
            if passage.denied is not None:
                if passage.killed or self._raises:
                    raise failure(passage)
                context.result = _said(told(passage.text), context.stream)
                return
            await call_next()
            if not isinstance(context.result, ResponseStream):
                await self._whole(context.result, passage, conversation)
        except _Blocked as e:
            if passage is not None:
                await passage.aend("succeeded")
            if self._raises:
                raise failure(e) from e
            context.result = _said(str(e), context.stream)
            return
        except BaseException as e:
            if passage is not None:
                passage.end_behind("failed" if isinstance(e, Exception) else "cancelled")
            if passage is None and isinstance(e, Exception):
                raise failure(e) from e
            raise
        finally:
            for tool in hosted:
                tool.end_behind("succeeded")
        if isinstance(context.result, ResponseStream):
            stream = self._held_back(context.result, conversation) if self._scan else context.result
            context.result = ending(stream, passage, lambda final: _note(passage, final))

    async def _ask(self, context: Any, conversation: str) -> Passage:
        chosen = context.options or {}
        most = chosen.get("max_tokens")
        tokens = most if isinstance(most, int) and most > 0 else 0
        return await self.gate.aenter(
            "",
            {"model": str(chosen.get("model") or getattr(context.client, "model", "") or ""), "max_tokens": tokens},
            conversation=conversation,
            options={"kind": "model", "tokens": tokens},
        )

    # Texts.

    async def _whole(self, response: Any, passage: Passage, conversation: str) -> None:
        if response is None:
            await passage.aend("succeeded")
            return
        _note(passage, response)
        if self._scan:
            response.messages = [await self._looked(m, "output", conversation) for m in response.messages]
        await passage.aend("succeeded")

    def _held_back(self, stream: Any, conversation: str) -> Any:
        """Return a stream of what may be said of another one."""

        async def looked() -> Any:
            response = await stream.get_final_response()
            try:
                response.messages = [await self._looked(m, "output", conversation) for m in response.messages]
            except _Blocked as e:
                response.messages = [Message(role="assistant", contents=[Content.from_text(str(e))])]
            return response

        async def pieces() -> AsyncIterator[Any]:
            for message in (await final()).messages:
                yield ChatResponseUpdate(role=message.role, contents=message.contents)

        found: list[Any] = []

        async def final(_: Any = None) -> Any:
            if not found:
                found.append(await looked())
            return found[0]

        return ResponseStream(pieces(), finalizer=final)

    async def _looked(self, message: Any, kind: str, conversation: str) -> Any:
        """Return a message as it may be used: itself, or a copy with other texts."""
        contents = [await self._look(c, kind, conversation) for c in message.contents]
        if all(now is before for now, before in zip(contents, message.contents, strict=True)):
            return message
        changed = copy.copy(message)
        changed.contents = contents
        return changed

    async def _look(self, content: Any, kind: str, conversation: str) -> Any:
        field = {"text": "text", "text_reasoning": "text", "function_result": "result"}.get(content.type)
        text = getattr(content, field, None) if field else None
        if field is None or not isinstance(text, str) or not text or was_told(text):
            return content
        used = await self._text(text, kind, conversation)
        if used == text:
            return content
        changed = copy.copy(content)
        setattr(changed, field, used)
        if field == "result":
            changed.items = [Content.from_text(used)]
        return changed

    async def _text(self, text: str, kind: str, conversation: str) -> str:
        key = (conversation, text)
        if (known := self._seen.get(key)) is not None:
            return known  # it comes again with each request
        scan = await self.gate.ascan(text, kind=kind, conversation=conversation)
        if not scan.allowed:
            raise _Blocked(told(f"Denied by govnode: {scan.reason or 'the text is blocked'}"))
        used = scan.redacted if scan.action == "redact" else text
        self._seen[key] = self._seen[conversation, used] = used
        while len(self._seen) > _MOST_SEEN:
            self._seen.popitem(last=False)
        return used

    # Tools that run where the model does.

    async def _hosted(self, message: Any, session: Any, begun: list[Passage]) -> Any:
        """Return a message in which only those hosted tools are approved that the service admits."""
        contents = []
        for content in message.contents:
            call = content.function_call if content.type == "function_approval_response" else None
            if call is not None and call.hosted and content.approved is True:
                passage = await self._judge(content, session)
                if passage.denied is not None:
                    log.warning("govnode: %s is not approved: %s", call.name, passage.text)
                    content = copy.copy(content)
                    content.approved = False
                else:
                    begun.append(passage)
            contents.append(content)
        changed = copy.copy(message)
        changed.contents = contents
        return changed

    async def _judge(self, response: Any, session: Any) -> Passage:
        call = response.function_call

        async def ask() -> Passage:
            return await self.gate.aenter(
                call.name,
                dict(call.parse_arguments() or {}),
                call_id=response.id,
                conversation=session.session_id if session is not None else "",
                options={"server_label": call.server_name or ""},
            )

        passage = await ask()
        if self._approvals is not None and asked(passage):
            await self._approvals.voted(session, response, passage.denied.approval)
            passage = await ask()
        passage.refuse_unfit()
        return passage


class _Blocked(Exception):
    """A text must not be used."""


def _note(passage: Passage, response: Any) -> None:
    if passage.call is not None:
        passage.call.tokens = tokens_of(response)


def _said(text: str, stream: bool) -> Any:
    if not stream:
        return ChatResponse(messages=[Message(role="assistant", contents=[Content.from_text(text)])])

    async def pieces() -> AsyncIterator[Any]:
        yield ChatResponseUpdate(role="assistant", contents=[Content.from_text(text)])

    return ResponseStream(pieces(), finalizer=ChatResponse.from_updates)
