"""The adapter contract's base, its values and its interceptors (sections 3, 5, 17 to 20)."""

from __future__ import annotations

from ..policy import GovernancePolicy, PatternType, PolicyConfig
from .base import BaseIntegration
from .interceptors import (
    BoundedSemaphore,
    CompositeInterceptor,
    ContentHashInterceptor,
    GuardrailInterceptor,
    PolicyInterceptor,
    ToolCallInterceptor,
    content_hash,
)
from .kernel import FrameworkKernel
from .values import (
    DriftResult,
    ExecutionContext,
    GovernanceEventType,
    PolicyCheckResult,
    PolicyViolationError,
    ToolCallRequest,
    ToolCallResult,
)

__all__ = [
    "BaseIntegration",
    "BoundedSemaphore",
    "CompositeInterceptor",
    "ContentHashInterceptor",
    "DriftResult",
    "ExecutionContext",
    "FrameworkKernel",
    "GovernanceEventType",
    "GovernancePolicy",
    "GuardrailInterceptor",
    "PatternType",
    "PolicyCheckResult",
    "PolicyConfig",
    "PolicyInterceptor",
    "PolicyViolationError",
    "ToolCallInterceptor",
    "ToolCallRequest",
    "ToolCallResult",
    "content_hash",
]
