"""The first step of a start: validate its order against the user's present settings.

Orders that can never be started were refused by `StartOrders` before the task was stored.
"""

from agentsvc.conversations.other_agents import acp_server_of
from agentsvc.conversations.starting.agent_request import check_secret_names, require_model
from agentsvc.conversations.starting.parts import StartParts
from agentsvc.conversations.starting.states import CheckedStart, Start
from agentsvc.domain import DEFAULT_HOSTS, Provider, check_host


async def check_request(parts: StartParts, start: Start) -> CheckedStart:
    """Return the start with its user's settings and git tokens.

    Raises BadRequest if no model is configured or the sandbox reserves the name of a secret, and
    NotFound if the model profile does not exist any more.
    """
    order, user_id = start.task.request, start.task.user_id
    settings = await parts.settings.get(user_id)
    if acp_server_of(order, settings) is None:
        require_model(order, settings)
    check_secret_names(order)
    tokens = {}
    for name, stored in (await parts.secrets.provider_tokens(user_id)).items():
        provider = Provider(name)
        host = stored.host or DEFAULT_HOSTS.get(provider)
        if host:
            tokens[provider] = (check_host(host), stored.token)
    return CheckedStart(start=start, settings=settings, tokens=tokens)
