"""Patterns of the URLs that clients may send; the OpenAPI description has them, too."""

from typing import Final

_LABEL: Final = "[A-Za-z0-9_]+(?:-+[A-Za-z0-9_]+)*"
_GROUP: Final = "[0-9A-Fa-f]{1,4}"
_SOME: Final = f"(?:{_GROUP}(?::{_GROUP})*)?"
_IPV6: Final = rf"\[(?!(?:[0-9A-Fa-f]*:){{8}})(?:(?:{_GROUP}:){{7}}{_GROUP}|{_SOME}::{_SOME})\]"
_HOST: Final = rf"(?:{_LABEL}(?:\.{_LABEL})*\.?|{_IPV6})"
_PORT: Final = (
    "(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
)
_USER: Final = "(?:[A-Za-z0-9._~%!$&'*+,;=:-]*@)?"
_PLAIN: Final = rf"(?i:https?)://{_HOST}(?::{_PORT})?"
_REST: Final = "(?:[/?#][!-~]*)?"

HTTP_URL: Final = rf"(?i:https?)://{_USER}{_HOST}(?::{_PORT})?{_REST}"
"""The URL of a language model."""
TOOL_SERVER_URL: Final = rf"(?i:https?|wss?)://{_USER}{_HOST}(?::{_PORT})?{_REST}"
"""The URL of a tool server."""
WEBHOOK_URL: Final = rf'{_PLAIN}(?:[/?][!"$-\[\]-~]*)?'
"""The URL of a webhook: no user name or password, no fragment."""
CLONE_URL: Final = rf"{_PLAIN}/[!-\[\]-~]+"
"""The URL of a repository to clone."""
GIT_HOST: Final = rf"(?:(?i:https?)://)?{_HOST}(?::{_PORT})?(?:/(?!.*://)[!\"$->@-\[\]-~]*)?"
"""The name or URL of a git hosting service."""
