"""Language models: catalogue, reachability checks, and the proxy that holds the real key.

Begin with `proxy`. The tokens that let a sandbox use it are in `conversations.model_tokens`. Imports
`agentserver`, `domain`, `plugin` and `base`.
"""

from agentsvc.models.catalogue import Catalogue as Catalogue
from agentsvc.models.catalogue import Model as Model
from agentsvc.models.catalogue import ModelProvider as ModelProvider
from agentsvc.models.check import Checked as Checked
from agentsvc.models.check import check_model as check_model
from agentsvc.models.hosts import host_of as host_of
from agentsvc.models.proxy import ModelProxy as ModelProxy
from agentsvc.models.proxy import ModelResponse as ModelResponse
from agentsvc.models.proxy import ModelTimedOut as ModelTimedOut
from agentsvc.models.wire import MAX_USED as MAX_USED
from agentsvc.models.wire import BadModelRequest as BadModelRequest
from agentsvc.models.wire import CallUsage as CallUsage
from agentsvc.models.wire import Upstream as Upstream
from agentsvc.models.wire import estimate_usage as estimate_usage
from agentsvc.models.wire import through as through
from agentsvc.models.wire import to_upstream_request as to_upstream_request
from agentsvc.models.wire import upstream_of as upstream_of
