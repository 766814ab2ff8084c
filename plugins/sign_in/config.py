"""Configuration of sign-in."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

type GivenRole = Literal["admin", "member", "viewer", "none"]


class Roles(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The users who may sign in, and their roles."""

    title: Annotated[str, Meta(max_length=100)] = ""
    """Its name on the login page"""
    new_users: bool = False
    """Create a user at the first sign-in; otherwise by invitation only"""
    roles: dict[str, GivenRole] = {}
    """The role for each group of the provider"""
    default_role: GivenRole = "member"
    """Role of users in none of these groups; `none` rejects them"""


class ProviderConfig(Roles, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table `[sign_in.providers.NAME]`: an OpenID Connect provider."""

    issuer: Annotated[str, Meta(pattern=r"^https?://[^/?#]+[^?#]*\Z")]
    client_id: Annotated[str, Meta(min_length=1)]
    client_secret_file: Annotated[str, Meta(extra={"path": True})] = ""
    """File with the client's secret; empty for a client without one."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    name_claim: str = "preferred_username"
    """Claim with the name for new users."""
    groups_claim: str = "groups"


class ProxyConfig(Roles, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[sign_in.proxy]`: an authenticating proxy among `server.trusted_proxies`."""

    user_header: str = ""
    """Header with the name of the user; empty: there is no proxy."""
    groups_header: str = ""
    """Header with the groups of the user, separated by commas."""


class SignInConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `sign_in` section: logins of browsers by external providers."""

    enabled: bool = False
    """Let browsers log in by OpenID Connect or by a proxy, in addition to keys. Needs the extra
    `oidc`"""
    clock_skew_seconds: Annotated[int, Meta(ge=0, le=600)] = 60
    """Tolerance for the clocks of providers"""
    invitation_days: Annotated[int, Meta(ge=1, le=365)] = 7
    """How long an invitation is valid"""
    providers: dict[str, ProviderConfig] = {}
    """Providers by name, as used in URLs; see the guide"""
    proxy: ProxyConfig = ProxyConfig()
    """The header with which a trusted proxy names users; see the guide"""
