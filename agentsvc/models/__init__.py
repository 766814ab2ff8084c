"""Language models: catalogue, reachability checks, and the proxy that holds the real key.

Begin with `proxy`. The tokens that let a sandbox use it are in `conversations.model_tokens`. Imports
`agentserver`, `domain` and `base`.
"""

from agentsvc.models.catalogue import Catalogue, Model, ModelProvider
from agentsvc.models.check import Checked, check_model
from agentsvc.models.hosts import host_of
from agentsvc.models.proxy import Answer, ModelProxy
from agentsvc.models.wire import (
    BadQuestion,
    Upstream,
    Usage,
    guess_usage,
    through,
    to_question,
    upstream_of,
)

__all__ = [
    "Answer",
    "BadQuestion",
    "Catalogue",
    "Checked",
    "Model",
    "ModelProvider",
    "ModelProxy",
    "Upstream",
    "Usage",
    "check_model",
    "guess_usage",
    "host_of",
    "through",
    "to_question",
    "upstream_of",
]
