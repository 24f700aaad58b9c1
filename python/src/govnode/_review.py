"""What rules leave of the output of a tool: what is sent to be judged, and what is shown in its place."""

from __future__ import annotations

import json
from typing import Any

from . import messages

MOST_REVIEWED = 1 << 20  # bytes of an end with its output and its begin

#: What is said where rules look at an output and none has judged it.
UNJUDGED = "[OUTPUT SUPPRESSED] rules look at what this tool returns, and none has judged this"
#: What is said of an output that is too large to be sent.
TOO_LARGE = "[OUTPUT SUPPRESSED] rules look at what this tool returns, and this is too large to be judged"


def judged(output: Any) -> Any:
    """Return an output as rules see it: what JSON can hold as it is, all else as its text."""
    try:
        json.dumps(output, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return text_of(output)
    return output


def text_of(output: Any) -> str:
    """Return an output as a text."""
    try:
        return output if isinstance(output, str) else str(output)
    except Exception:  # an output that cannot be shown is none for anybody
        return type(output).__name__


def written(shown: Any) -> str:
    """Return what is to be shown as a text for a model."""
    return shown if isinstance(shown, str) else json.dumps(shown, default=str, ensure_ascii=False)


def left(review: messages.Review | None, output: Any) -> Any:
    """Return what is to be shown in place of an output; None where that is the output itself."""
    if review is None:
        return UNJUDGED
    shown = review.output if review.changed else output
    if not review.warnings:
        return shown if review.changed else None
    return "\n".join([written(shown), *review.warnings])
