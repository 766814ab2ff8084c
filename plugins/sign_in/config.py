"""Configuration of sign-in."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

type GivenRole = Literal["admin", "member", "viewer", "none"]


class Roles(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which users are let in, and what they may do."""

    title: Annotated[str, Meta(max_length=100)] = ""
    """What the login page calls it"""
    new_users: bool = False
    """Make a user at the first sign-in; else by invitation only"""
    roles: dict[str, GivenRole] = {}
    """The role that each group of the provider gives"""
    default_role: GivenRole = "member"
    """Role of who is in none of these groups; `none` lets nobody in"""


class ProviderConfig(Roles, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table `[sign_in.providers.NAME]`: a provider that speaks OpenID Connect."""

    issuer: Annotated[str, Meta(pattern=r"^https?://[^/?#]+[^?#]*\Z")]
    client_id: Annotated[str, Meta(min_length=1)]
    client_secret_file: Annotated[str, Meta(extra={"path": True})] = ""
    """File with the secret of the client; empty for a client without one."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    name_claim: str = "preferred_username"
    """Claim that names new users."""
    groups_claim: str = "groups"


class ProxyConfig(Roles, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[sign_in.proxy]`: a proxy that knows its users, among `server.trusted_proxies`."""

    user_header: str = ""
    """Header in which it names the user; empty: there is none."""
    groups_header: str = ""
    """Header with the groups of the user, between commas."""


class SignInConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `sign_in` section: logins of browsers by others than this server."""

    enabled: bool = False
    """Let browsers log in by OpenID Connect or by a proxy; keys still work. It needs the extra
    `oidc`"""
    clock_skew_seconds: Annotated[int, Meta(ge=0, le=600)] = 60
    """How far the clocks of providers may be off"""
    invitation_days: Annotated[int, Meta(ge=1, le=365)] = 7
    """How long an invitation can be used"""
    providers: dict[str, ProviderConfig] = {}
    """Providers by their names, which are in the URLs; see the guide"""
    proxy: ProxyConfig = ProxyConfig()
    """The header by which a trusted proxy names users; see the guide"""
