"""What rules leave of the output of a tool: what is sent to be judged, and what is shown in its place."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any, TypeVar

from . import messages

T = TypeVar("T")

MOST_REVIEWED = 1 << 20  # bytes of an end with its output and its begin
_CONTENT = ("content", "result")  # where results hold their parts
_ALONGSIDE = ("structuredContent", "structured_content", "artifact")  # what results hold beside their content

#: What is said where rules look at an output and none has judged it.
UNJUDGED = "[OUTPUT SUPPRESSED] rules look at what this tool returns, and none has judged this"
#: What is said of an output that is too large to be sent.
TOO_LARGE = "[OUTPUT SUPPRESSED] rules look at what this tool returns, and this is too large to be judged"


def judged(output: Any) -> Any:
    """Return an output as rules see it: what JSON can hold as it is, all else as its text."""
    if isinstance(output, str):
        return output
    try:
        json.dumps(output, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        _, parts = _parts(output)
        return text_of(output) if parts is None else "\n".join(_text(p) for p in parts)
    return output


def _parts(output: Any) -> tuple[str, list[Any] | None]:
    """Return the texts that a result of a framework is made of, and where it holds them; None where it is not."""
    for name in ("", *_CONTENT):
        parts = getattr(output, name, None) if name else output
        if isinstance(parts, (list, tuple)) and any(_field(p) for p in parts):
            return name, list(parts)
    return "", None


def _field(part: Any) -> str:
    """Return where a part holds its text; empty if it is none."""
    return next((name for name in ("text", "content") if isinstance(getattr(part, name, None), str)), "")


def _text(part: Any) -> str:
    return str(getattr(part, _field(part))) if _field(part) else text_of(part)


def text_of(output: Any) -> str:
    """Return an output as a text."""
    try:
        return output if isinstance(output, str) else str(getattr(output, "content", output))
    except Exception:  # an output that cannot be shown is none for anybody
        return type(output).__name__


def left(review: messages.Review | None, output: Any) -> Any:
    """Return what is to be shown in place of an output; None where that is the output itself."""
    if review is None:
        return UNJUDGED
    shown = review.output if review.changed else output
    if not review.warnings:
        return shown if review.changed else None
    text = shown if isinstance(shown, str) else json.dumps(shown, default=str, ensure_ascii=False)
    return "\n".join([text, *review.warnings])


def replaced(result: T, shown: Any) -> Any:
    """Return a result of a framework with what is to be shown in the place of its content."""
    text = shown if isinstance(shown, str) else json.dumps(shown, default=str, ensure_ascii=False)
    beside = {name: None for name in _ALONGSIDE if hasattr(result, name)}
    name, parts = _parts(result)
    if parts is not None:
        part = next(p for p in parts if _field(p))
        new = [_with(part, {_field(part): text})]
        return new if name == "" else _with(result, {name: new, **beside})
    if not isinstance(result, str) and isinstance(getattr(result, "content", None), str):
        return _with(result, {"content": text, **beside})
    return shown


def _with(thing: Any, values: dict[str, Any]) -> Any:
    if hasattr(thing, "model_copy"):
        return thing.model_copy(update=values)
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return dataclasses.replace(thing, **values)
    changed = copy.copy(thing)
    for name, value in values.items():
        setattr(changed, name, value)
    return changed
