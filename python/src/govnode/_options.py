"""What may be said of a call or a slot beside what it is of, and how that is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, TypedDict

from . import messages
from ._wire import budgets_of, duration, pools_of, put_arguments, put_context, put_metadata, put_order, rates_of


class CallOptions(TypedDict, total=False):
    """What else may be said of a call that begins."""

    call_id: str
    """Under which it can be begun again after an Unknown. Drawn if it is not given."""
    kind: str
    """tool (the default), model, agent, handoff or sampling."""
    context: Mapping[str, Any] | str
    """What rules may look at beside the arguments; a text is JSON."""
    metadata: Mapping[str, Any]
    """Of adapter contract 5.1, for instance ``content_hash``; rules may look at it, whatever JSON can hold."""
    pools: Mapping[str, int] | Iterable[str]
    """Where it takes a slot beside the pool of its policy, all or none; with how many slots."""
    rates: Mapping[str, int | str] | Iterable[str]
    """At which it spends beside those of its policy: a number, or ``tokens``."""
    budgets: Mapping[str, str | int | float | Decimal]
    """What it is assumed to cost. ``spent`` corrects it."""
    ttl: float
    """Of the lease, in seconds, 1 to 3600; 30 if it is not given."""
    max_hold: float
    """How long it may be held, renewals included."""
    wait: float
    """For a slot, a rate, an approval or the end of a STOP: 10 s if it is not given, 0 for not at all."""
    approval_wait: float
    """For an approval, if that is to be another time than ``wait``."""
    priority: int
    """In queues: the highest first."""
    tokens: int
    """That it may use."""
    server_label: str
    """Of the server that has the tool, of hosted and MCP tools: standing approvals name it."""
    order: str
    """Of the checks: interceptor or pre_execute."""
    on_lost: Callable[[messages.Loss], None]
    """Called, on a thread of its own, when the slots of the call are lost."""
    on_signal: Callable[[messages.Signal], None]
    """Called, on a thread of its own, when a renewal brings a STOP or a KILL."""
    cancel_on_lost: bool
    """Of an async block: cancel its task when the slots are lost, and raise LeaseLost in its place."""


class SlotOptions(TypedDict, total=False):
    """What else may be said of a slot that is taken."""

    slot_id: str
    """Under which it can be asked for again after an Unknown. Drawn if it is not given."""
    weight: int
    """How many slots, all or none; 1 if it is not given."""
    ttl: float
    """Of the lease, in seconds; 30 if it is not given."""
    max_hold: float
    """How long it may be held, renewals included."""
    wait: float
    """In the queue of the pool: 10 s if it is not given, 0 for not at all."""
    priority: int
    """In the queue: the highest first."""
    label: str
    """Shown to those who look at the holders of a pool."""
    on_lost: Callable[[messages.Loss], None]
    """Called, on a thread of its own, when the slot is lost."""
    cancel_on_lost: bool
    """Of an async block: cancel its task when the slot is lost, and raise LeaseLost in its place."""


def check_options(what: str, options: CallOptions | SlotOptions, kind: type) -> None:
    """Raise TypeError for an option that there is not: a limit with a wrong name would be none."""
    if not options.keys() <= kind.__annotations__.keys():
        wrong = sorted(options.keys() - kind.__annotations__.keys())[0]
        raise TypeError(f"govnode: a {what} has no option {wrong}; it has {', '.join(kind.__annotations__)}")


def begin_body(
    session_id: str, tool: str, arguments: Mapping[str, Any] | str | None, options: CallOptions
) -> dict[str, Any]:
    """Write the request that begins a call."""
    body: dict[str, Any] = {"sessionId": session_id, "tool": tool}
    put_arguments(body, arguments)
    put_context(body, options.get("context"))
    put_order(body, options.get("order"))
    if "kind" in options:
        body["kind"] = "KIND_" + options["kind"].upper()
    if metadata := options.get("metadata"):
        put_metadata(body, metadata)
    if pools := options.get("pools"):
        body["pools"] = pools_of(pools)
    if rates := options.get("rates"):
        body["rates"] = rates_of(rates)
    if budgets := options.get("budgets"):
        body["budgets"] = budgets_of(budgets)
    if "ttl" in options:
        body["ttl"] = duration(options["ttl"])
    if "max_hold" in options:
        body["maxHold"] = duration(options["max_hold"])
    if label := options.get("server_label"):
        body["serverLabel"] = label
    if priority := options.get("priority"):
        body["priority"] = priority
    if tokens := options.get("tokens"):
        body["tokens"] = str(tokens)
    return body
