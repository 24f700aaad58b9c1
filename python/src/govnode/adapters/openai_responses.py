"""OpenAI Responses: a loop around ``client.responses.create`` that runs functions, and a gate for loops of one's own.

    from govnode.adapters.openai_responses import govern_responses

    responses = govern_responses(client, session, tools={"shell": shell})
    response = responses.create(model="gpt-5", input="clean up", tools=[SHELL], conversation=conversation.id)

The SDK runs no functions and has no hook. So the loop is here: it makes the requests as they are asked for, runs each
function that a response calls behind the gate, and answers with its output until a response calls none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from ._functions import Asked, Functions, is_async, shown
from ._gate import Gate, Sessions, missing

try:
    from openai import AsyncOpenAI, OpenAI
except ImportError as e:
    raise missing("the OpenAI SDK", "openai") from e

# What is to be run here, and the type of its output.
_CALLS = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
# What the caller of a response has to answer too, and this module cannot.
_OTHERS = ("computer_call", "local_shell_call", "shell_call", "apply_patch_call", "tool_search_call")
_ENDS = ("response.completed", "response.incomplete", "response.failed")


class TurnsExceeded(RuntimeError):
    """A model called functions in each of ``max_turns`` responses. ``response`` is the last one, not answered."""

    def __init__(self, response: Any, turns: int) -> None:
        super().__init__(f"govnode: the model still calls functions after {turns} responses")
        self.response = response


class ResponsesGate:
    """Runs the functions that a response calls: for a loop of one's own.

    ``session`` is a session, or a function that returns that of a conversation by its id. ``tools`` are the functions
    by name; one in a namespace is called ``namespace.name``. ``parallel`` is how many calls of one response run at
    once. ``on_error`` makes a text for the model of what a function raises; without it that is raised to the caller.
    The arguments of ``Gate`` may follow.
    """

    def __init__(
        self, session: Sessions, tools: Mapping[str, Callable[..., Any]] | None = None, **options: Any
    ) -> None:
        self.functions = Functions(session, tools, **options)

    @property
    def gate(self) -> Gate:
        """What is asked: calls of other kinds may be put to it too."""
        return self.functions.gate

    def output_of(
        self, item: Any, tool: Callable[..., Any] | None = None, *, conversation: str = "", response_id: str = ""
    ) -> dict[str, Any]:
        """Run one call, and return the item that answers it.

        ``response_id`` makes its id unique where the model gives ids out anew.
        """
        return _answer(item, self.functions.run(_asked(item, tool, conversation, response_id)))

    async def aoutput_of(
        self, item: Any, tool: Callable[..., Any] | None = None, *, conversation: str = "", response_id: str = ""
    ) -> dict[str, Any]:
        """Run one call, as ``output_of`` does."""
        return _answer(item, await self.functions.arun(_asked(item, tool, conversation, response_id)))

    def outputs(self, response: Any, conversation: str = "") -> list[dict[str, Any]]:
        """Run all the functions that a response calls, and return the items that answer them, in order."""
        items, asked = self._of(response, conversation)
        return [_answer(*x) for x in zip(items, self.functions.run_all(asked), strict=True)]

    async def aoutputs(self, response: Any, conversation: str = "") -> list[dict[str, Any]]:
        """Run all the functions that a response calls, as ``outputs`` does."""
        items, asked = self._of(response, conversation)
        return [_answer(*x) for x in zip(items, await self.functions.arun_all(asked), strict=True)]

    def end_if_killed(self, conversation: str = "") -> None:
        """Raise Killed if the session is known to be killed: what comes before a request."""
        self.functions.end_if_killed(conversation)

    @staticmethod
    def _of(response: Any, conversation: str) -> tuple[list[Any], list[Asked]]:
        conversation = conversation or _conversation(response)
        items = calls_of(response)
        return items, [_asked(i, None, conversation, response.id or "") for i in items]


class GovernedResponses:
    """What ``govern_responses`` returns for an OpenAI client."""

    def __init__(self, client: Any, gate: ResponsesGate, max_turns: int) -> None:
        self.client = client
        self.gate = gate
        self.max_turns = max_turns

    def create(self, **request: Any) -> Any:
        """Make a request, and further ones with the outputs of functions, and return the last response.

        The arguments are those of ``client.responses.create``. With ``stream=True`` the events of all the responses are
        returned, as they come.
        """
        _check(request)
        if request.pop("stream", None):
            return self._stream(request)
        turn = _Turn(self.gate, request, self.max_turns)
        while True:
            response = self.client.responses.create(**turn.request)
            if turn.last(response):
                return response
            turn.go_on(response, self.gate.outputs(response, turn.conversation))

    def _stream(self, request: dict[str, Any]) -> Iterator[Any]:
        turn = _Turn(self.gate, request, self.max_turns)
        while True:
            response = None
            with self.client.responses.create(**turn.request, stream=True) as events:
                for event in events:
                    if event.type in _ENDS:
                        response = event.response
                    yield event
            if response is None or turn.last(response):
                return
            turn.go_on(response, self.gate.outputs(response, turn.conversation))


class AsyncGovernedResponses:
    """What ``govern_responses`` returns for an AsyncOpenAI client."""

    def __init__(self, client: Any, gate: ResponsesGate, max_turns: int) -> None:
        self.client = client
        self.gate = gate
        self.max_turns = max_turns

    async def create(self, **request: Any) -> Any:
        """Make requests, as ``GovernedResponses.create`` does."""
        _check(request)
        if request.pop("stream", None):
            return self._stream(request)
        turn = _Turn(self.gate, request, self.max_turns)
        while True:
            response = await self.client.responses.create(**turn.request)
            if turn.last(response):
                return response
            turn.go_on(response, await self.gate.aoutputs(response, turn.conversation))

    async def _stream(self, request: dict[str, Any]) -> AsyncIterator[Any]:
        turn = _Turn(self.gate, request, self.max_turns)
        while True:
            response = None
            async with await self.client.responses.create(**turn.request, stream=True) as events:
                async for event in events:
                    if event.type in _ENDS:
                        response = event.response
                    yield event
            if response is None or turn.last(response):
                return
            turn.go_on(response, await self.gate.aoutputs(response, turn.conversation))


def govern_responses(
    client: Any,
    session: Sessions,
    tools: Mapping[str, Callable[..., Any]],
    *,
    max_turns: int = 100,
    **options: Any,
) -> Any:
    """Return a governed ``client.responses``: GovernedResponses of an OpenAI, AsyncGovernedResponses of an AsyncOpenAI.

    The arguments of ``ResponsesGate`` may follow. After ``max_turns`` responses that call functions, TurnsExceeded is
    raised.
    """
    gate = ResponsesGate(session, tools, **options)
    if isinstance(client, AsyncOpenAI):
        return AsyncGovernedResponses(client, gate, max_turns)
    if not isinstance(client, OpenAI):
        raise TypeError(f"govnode: {type(client).__name__} is neither an OpenAI nor an AsyncOpenAI")
    if waits := sorted(name for name, tool in gate.functions.tools.items() if is_async(tool)):
        raise TypeError(f"govnode: functions that are to be awaited need an AsyncOpenAI: {', '.join(waits)}")
    return GovernedResponses(client, gate, max_turns)


class _Turn:
    """The request of each turn of one loop."""

    def __init__(self, gate: ResponsesGate, request: dict[str, Any], most: int) -> None:
        named = request.get("conversation")
        self.conversation = str((named.get("id") if isinstance(named, Mapping) else named) or "")
        self.request = request
        self._gate = gate
        self._left = self._most = most
        gate.end_if_killed(self.conversation)

    def last(self, response: Any) -> bool:
        """Report whether a response goes to the caller: it calls nothing, is not whole, or asks for other things."""
        self.conversation = self.conversation or _conversation(response)
        if getattr(response, "status", None) not in (None, "completed") or _others(response):
            return True
        if not calls_of(response):
            return True
        self._left -= 1
        if self._left <= 0:
            raise TurnsExceeded(response, self._most)
        return False

    def go_on(self, response: Any, outputs: list[dict[str, Any]]) -> None:
        """Put the outputs where the provider looks for them; what came before is there, or goes along."""
        self._gate.end_if_killed(self.conversation)
        request = dict(self.request)
        if request.get("conversation"):
            request["input"] = outputs
        elif request.get("store") is False:
            before = request.get("input") or []
            if isinstance(before, str):
                before = [{"role": "user", "content": before}]
            request["input"] = [*before, *response.output, *outputs]
        else:
            request["input"], request["previous_response_id"] = outputs, response.id
        if _forces(request.get("tool_choice")):
            request["tool_choice"] = "auto"  # what is forced once would be forced for ever
        self.request = request


def calls_of(response: Any) -> list[Any]:
    """Return the items of a response that are calls of functions, and are not answered in it."""
    answered = {i.call_id for i in response.output if i.type in _CALLS.values()}
    return [i for i in response.output if i.type in _CALLS and i.call_id not in answered]


def _others(response: Any) -> bool:
    answered = {getattr(i, "call_id", None) for i in response.output if i.type.endswith("_output")}
    return any(
        i.type == "mcp_approval_request"
        or (i.type in _OTHERS and i.call_id not in answered and getattr(i, "execution", "client") == "client")
        for i in response.output
    )


def _check(request: dict[str, Any]) -> None:
    if request.get("background"):
        raise ValueError("govnode: a response in the background calls nothing yet: retrieve it, and use ResponsesGate")


def _conversation(response: Any) -> str:
    return str(getattr(getattr(response, "conversation", None), "id", None) or "")


def _forces(choice: Any) -> bool:
    if isinstance(choice, Mapping):
        return bool(choice.get("type") in ("function", "custom") or choice.get("mode") == "required")
    return bool(choice == "required")


def _asked(item: Any, tool: Callable[..., Any] | None, conversation: str, response_id: str) -> Asked:
    if item.type not in _CALLS:
        raise TypeError(f"govnode: {item.type} is no call of a function")
    cut = getattr(item, "status", None) not in (None, "completed")
    namespace = getattr(item, "namespace", None)
    return Asked(
        name=f"{namespace}.{item.name}" if namespace else item.name,
        arguments=item.arguments if item.type == "function_call" else {"input": item.input},
        call_id=item.call_id or "",
        run_id=conversation or response_id,
        conversation=conversation,
        function=tool,
        fault=lambda: f"the call of {item.name} is not whole" if cut else "",
    )


def _answer(item: Any, output: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {"type": _CALLS[item.type], "call_id": item.call_id, "output": _content(output)}
    caller = getattr(item, "caller", None)
    if caller is not None:  # a program of the model is told by it which of its calls this was
        answer["caller"] = caller.model_dump(mode="json")
    return answer


def _content(output: Any) -> Any:
    """Return what a function gave as the API takes it: a text, or a list of input_text, input_image and input_file."""
    if isinstance(output, list) and output and all(_is_part(p) for p in output):
        return output
    return shown(output)


def _is_part(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in ("input_text", "input_image", "input_file")
