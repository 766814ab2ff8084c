"""Maps the groups of a user at a provider to a role. Pure."""

from typing import Any, Final

from agentsvc.base import NotAllowed
from agentsvc.extension.accounts import Role

from .config import Roles

_ORDER: Final = (Role.ADMIN, Role.MEMBER, Role.VIEWER)


def role_of(config: Roles, groups: Any) -> Role:
    """Return the highest role of these groups; raises NotAllowed if they have none."""
    named = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
    given = {config.roles.get(one) for one in named if isinstance(one, str)} - {None}
    for role in _ORDER:
        if role.value in (given or {config.default_role}):
            return role
    raise NotAllowed("Your account may not use this server; ask its administrator for a group")
