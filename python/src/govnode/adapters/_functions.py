"""Functions that a model calls by name, where the framework runs none: what the adapters of such APIs share."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from ..errors import Denied
from ._gate import Gate, Killed, Passage, PolicyViolationError, Sessions, text_of


@dataclass(frozen=True)
class Asked:
    """One call that a model asks for."""

    name: str
    arguments: Mapping[str, Any] | str
    call_id: str = ""
    run_id: str = ""
    conversation: str = ""
    #: What runs; without it the function that is registered under the name.
    function: Callable[..., Any] | None = None
    #: Says why it cannot be run, if so: asked right before.
    fault: Callable[[], str] = str


class Functions:
    """Runs functions through a gate.

    What they return, or why they did not run, is for the model. Of a session that is killed Killed is raised. What a
    function raises goes to the caller, or, with ``on_error``, what that makes of it goes to the model. ``parallel`` is
    how many of the calls that are asked for at once run at once.
    """

    def __init__(
        self,
        session: Sessions,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        *,
        parallel: int = 1,
        on_error: Callable[[Exception], str] | None = None,
        **options: Any,
    ) -> None:
        if parallel < 1:
            raise ValueError("govnode: parallel must not be below 1")
        self.gate = Gate(session, **options)
        self.tools = dict(tools or {})
        self.parallel = parallel
        self.on_error = on_error

    def end_if_killed(self, conversation: str) -> None:
        """Raise Killed if the last call of the session was told so: there is no use in asking its model again."""
        killed = self.gate.killed(conversation)
        if killed is not None:
            raise Killed(killed)

    # From threads.

    def run(self, asked: Asked) -> Any:
        """Run one function."""
        function, arguments, fault = self._prepared(asked)
        if fault:
            return self._refused(fault)
        passage = self.gate.enter(
            asked.name,
            arguments,
            call_id=asked.call_id,
            run_id=asked.run_id,
            conversation=asked.conversation,
        )
        if not passage.admitted:
            return _told(passage)
        try:
            return passage.run(lambda: _called(function, passage.arguments), seen=_seen)
        except Exception as e:
            return self._failed(e)

    def run_all(self, asked: Sequence[Asked]) -> list[Any]:
        """Run some functions, and return what they gave, in order. The first error ends those that have not begun."""
        if self.parallel == 1 or len(asked) < 2:
            return [self.run(a) for a in asked]
        pool = ThreadPoolExecutor(min(self.parallel, len(asked)), "govnode-tool")
        try:
            futures = [pool.submit(contextvars.copy_context().run, self.run, a) for a in asked]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in futures:
                if future in done:
                    future.result()  # raises the first error
            return [future.result() for future in futures]
        finally:
            pool.shutdown(cancel_futures=True)

    # On a loop.

    async def arun(self, asked: Asked) -> Any:
        """Run one function: a synchronous one in a thread."""
        function, arguments, fault = self._prepared(asked)
        if fault:
            return self._refused(fault)
        passage = await self.gate.aenter(
            asked.name,
            arguments,
            call_id=asked.call_id,
            run_id=asked.run_id,
            conversation=asked.conversation,
        )
        if not passage.admitted:
            return _told(passage)
        threaded = not is_async(function)

        async def work() -> Any:
            if not threaded:
                return await function(**passage.arguments)
            result = await asyncio.to_thread(function, **passage.arguments)
            return await result if inspect.isawaitable(result) else result

        try:
            return await passage.arun(work, threaded=threaded, seen=_seen)
        except Exception as e:
            return self._failed(e)

    async def arun_all(self, asked: Sequence[Asked]) -> list[Any]:
        """Run some functions, as ``run_all`` does. The first error cancels the others."""
        if self.parallel == 1 or len(asked) < 2:
            return [await self.arun(a) for a in asked]
        places = asyncio.Semaphore(self.parallel)

        async def one(a: Asked) -> Any:
            async with places:
                return await self.arun(a)

        tasks = [asyncio.create_task(one(a)) for a in asked]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # What both share.

    def _prepared(self, asked: Asked) -> tuple[Callable[..., Any], dict[str, Any], str]:
        """Return the function and its arguments, parsed once: what is judged is what runs."""
        function = asked.function or self.tools.get(asked.name)
        arguments: Any = asked.arguments
        fault = asked.fault()
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except ValueError:
                arguments = None
        if not isinstance(arguments, Mapping):
            arguments, fault = {}, fault or f"the arguments of {asked.name} are no JSON object"
        if function is None:
            return _called, {}, fault or f"there is no function {asked.name}"
        return function, dict(arguments), fault

    def _refused(self, fault: str) -> str:
        denied = Denied("REJECTED", fault)
        if self.gate.on_denied == "raise":
            raise PolicyViolationError(denied)
        return text_of(denied)

    def _failed(self, error: Exception) -> str:
        if self.on_error is None or isinstance(error, Killed):  # of an agent in the function
            raise error
        return self.on_error(error)


def shown(result: Any) -> str:
    """Return what a function gave as a text for the model."""
    if isinstance(result, str):
        return result
    return "" if result is None else json.dumps(result, default=str, ensure_ascii=False)


def _seen(result: Any) -> Any:
    """Return what a model sees of a result: what JSON can hold as it is."""
    try:
        json.dumps(result)
    except TypeError:
        return shown(result)
    return result


def _told(passage: Passage) -> str:
    if passage.killed and passage.denied is not None:
        raise Killed(passage.denied)
    return passage.text


def _called(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    result = function(**arguments)
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError("govnode: a function that is to be awaited needs an asynchronous client")
    return result


def is_async(function: Any) -> bool:
    """Report whether calling a function gives something to await, as far as that can be told."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
