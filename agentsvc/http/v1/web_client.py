"""What a web front end asks for before it shows anything or starts a conversation."""

from typing import Annotated, Any, Final, Literal

import msgspec
from aiohttp import web

from agentsvc.http.middleware import ACTIVITY
from agentsvc.http.routes import Route, Scope
from agentsvc.http.wire import Time, json_response
from agentsvc.orders import Provider
from agentsvc.values import to_stored


class FeatureFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What a front end shows; on a single node there is nobody to bill."""

    enable_billing: bool = False
    hide_llm_settings: bool = False
    enable_jira: bool = False
    enable_jira_dc: bool = False
    enable_linear: bool = False
    hide_users_page: bool = False
    hide_billing_page: bool = False
    hide_integrations_page: bool = False
    hide_personal_workspaces: bool = False
    allow_user_llm_configuration: bool = True
    enable_acp: bool = True
    deployment_mode: Literal["cloud", "self_hosted"] | None = None
    enable_onboarding: bool = False
    enable_automations: bool = True
    enable_agent_canvas_banner: bool = False


class WebClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """WebClientConfig."""

    app_mode: Literal["oss", "saas"] = "oss"
    posthog_client_key: str | None = None
    feature_flags: FeatureFlags = FeatureFlags()
    providers_configured: list[Provider] = []
    maintenance_start_time: str | None = None
    auth_url: str | None = None
    recaptcha_site_key: str | None = None
    faulty_models: list[str] = []
    error_message: str | None = None
    updated_at: Time
    github_app_slug: str | None = None
    gitlab_enabled: bool = False
    provider_default_hosts: dict[str, str] = {}
    slack_enabled: bool = False
    email_enabled: bool = False
    email_change_enabled: bool = False
    acp_providers: Annotated[list[Any], msgspec.Meta(max_length=0)] = []
    jira_dc_oauth_host: str | None = None
    jira_dc_service_account_managed: bool = False
    jira_dc_service_account_email: str | None = None
    jira_dc_service_account_config_error: str | None = None
    kind: Literal["WebClientConfig"] = "WebClientConfig"


class AgentProfileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A saved agent."""

    id: str | None
    name: str
    agent_kind: str
    revision: int | None
    llm_profile_ref: str | None
    mcp_server_refs: list[str] | None


class AgentProfiles(msgspec.Struct, frozen=True, kw_only=True):
    """The saved agents, of which there are none: the settings say what an agent is."""

    profiles: list[AgentProfileInfo] = []
    active_agent_profile_id: str | None = None


async def get_config(request: web.Request) -> web.Response:
    """GET /web-client/config."""
    started_at = to_stored(request.app[ACTIVITY].started_at)
    return json_response(WebClientConfig(updated_at=started_at))


async def get_agent_profiles(_request: web.Request) -> web.Response:
    """GET /api/agent-profiles."""
    return json_response(AgentProfiles())


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/v1/web-client/config",
        handler=get_config,
        scope=Scope.OPEN,
        rank="P1",
        summary="Say what a front end should show",
        answer=WebClientConfig,
    ),
    Route(
        method="GET",
        path="/api/agent-profiles",
        handler=get_agent_profiles,
        scope=Scope.READ,
        rank="P3",
        summary="List the saved agents: there are none, the settings say what an agent is",
        answer=AgentProfiles,
    ),
)
