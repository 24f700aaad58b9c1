"""How what callers give is written for the service: JSON as the API has it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from .errors import Denied

# A request has at most 256 KiB, of which this is for the arguments, and for the operations of a batch.
MOST_BYTES = 192 << 10
# Of an output; of a longer one only the hash is compared.
MOST_OUTPUT = 64 << 10

dumps = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_exact = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=str, check_circular=True).encode


def text_of(value: Any) -> str:
    """Write a value as JSON, with the order of its keys and its numbers as they are, else as ``str()`` has it."""
    try:
        return _exact(value)
    except (TypeError, ValueError):  # a key that is no text, a number that is none, or something within itself
        return _exact(_plain(value, ()))


def _plain(value: Any, above: tuple[int, ...]) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if not isinstance(value, dict | list | tuple):
        return value
    if id(value) in above:
        return "..."
    inside = (*above, id(value))
    if isinstance(value, dict):
        return {str(k): _plain(v, inside) for k, v in value.items()}
    return [_plain(v, inside) for v in value]


def json_text(what: str, value: Mapping[str, Any] | str | None) -> str:
    """Write the arguments or the context of a call. Text is taken as it is."""
    try:
        text = value if isinstance(value, str) else text_of({} if value is None else value)
    except RecursionError:
        raise Denied("ARGUMENTS_TOO_LARGE", f"the {what} are nested too deeply to be judged") from None
    if len(text) > MOST_BYTES or (not text.isascii() and len(text.encode()) > MOST_BYTES):
        raise Denied("ARGUMENTS_TOO_LARGE", f"the {what} are more than {MOST_BYTES >> 10} KiB of JSON: send less")
    return text


def put_arguments(body: dict[str, Any], arguments: Mapping[str, Any] | str | None) -> None:
    """Put the arguments of a call into a request."""
    if arguments is not None:
        body["argumentsJson"] = json_text("arguments", arguments)


def put_context(body: dict[str, Any], context: Mapping[str, Any] | str | None) -> None:
    """Put the context of a call into a request."""
    if context is not None:
        body["contextJson"] = json_text("context", context)


def put_metadata(body: dict[str, Any], metadata: Mapping[str, Any]) -> None:
    """Put metadata into a request: texts as they are, all else as JSON."""
    if all(isinstance(value, str) for value in metadata.values()):
        body["metadata"] = dict(metadata)
    else:
        body["metadataJson"] = json_text("metadata", metadata)


def put_order(body: dict[str, Any], order: str | None) -> None:
    """Put the order of checks into a request: interceptor or pre_execute."""
    if order is not None:
        body["order"] = "ORDER_" + order.upper()


def duration(seconds: float) -> str:
    """Write a number of seconds."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"


def exact(amount: str | int | float | Decimal) -> str:
    """Write an amount as a decimal without an exponent."""
    return amount if isinstance(amount, str) else f"{Decimal(str(amount)):f}"


def policy_ref(policy: str) -> dict[str, str]:
    """Name a policy by its name, or by its digest."""
    return {"digest" if policy.startswith("sha256:") else "name": policy}


def pools_of(pools: Mapping[str, int] | Iterable[str]) -> list[dict[str, Any]]:
    """Write the pools in which a call wants slots."""
    if isinstance(pools, Mapping):
        return [{"pool": p, "weight": w} for p, w in pools.items()]
    return [{"pool": p} for p in pools]


def rates_of(rates: Mapping[str, int | str] | Iterable[str]) -> list[dict[str, Any]]:
    """Write the rates at which a call spends: a number, or ``tokens``."""
    if not isinstance(rates, Mapping):
        return [{"rate": r} for r in rates]
    return [{"rate": r, "by": "COST_TOKENS"} if c == "tokens" else {"rate": r, "cost": c} for r, c in rates.items()]


def budgets_of(budgets: Mapping[str, str | int | float | Decimal]) -> list[dict[str, str]]:
    """Write the amounts that a call is charged."""
    return [{"budget": b, "amount": exact(a)} for b, a in budgets.items()]
