"""Converts responses for clients of older agent server versions.

A client states its version of the Python SDK as a suffix of its key. Otherwise the version is
detected from its request that starts a conversation, because the SDK writes all fields it knows.
The response sets a cookie, which this client sends from then on. Its WebSocket sends no cookies,
but has the key in its query, which newer versions do not have. All other traffic is unchanged.
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import hdrs, web
from multidict import CIMultiDict

from agentsvc.http.gateway import rewriting as rewrite
from agentsvc.http.gateway import websocket_frames as frames
from agentsvc.http.gateway.target import PortRequest, ProxyTarget
from agentsvc.http.keys import SDK_VERSION
from agentsvc.http.routes import KEY_PARAMETER
from agentsvc.http.sdk_versions import (
    HTTP_CLIENT,
    Version,
    parse_version,
    reader_of,
    version_of_start,
    write_version,
)
from agentsvc.sandboxes import AGENT_PORT

COOKIE: Final = "agentsvc_sdk"
"""Name of the cookie with the SDK version that started a conversation."""

_START: Final = "/api/conversations"
_EVENTS = re.compile(r"\A/api/conversations/[^/]+/events(?:/[^/]+)?\Z")
_SOCKET: Final = "/sockets/events/"
_SOCKET_CLIENT = re.compile(r"\APython/[0-9.]+ websockets/")
_MAX_SANDBOXES: Final = 10_000
"""Maximum number of sandboxes whose client version is remembered; the oldest entry is evicted."""


class OlderClients:
    """Detects the SDK version of clients and converts responses for older ones."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, Version] = OrderedDict()

    def adapt(
        self, request: web.Request, place: PortRequest, sandbox_id: str, target: ProxyTarget
    ) -> ProxyTarget:
        """Return the target, changed so that an older client can read the response."""
        if place.port != AGENT_PORT:
            return target
        if place.path == _START and target.edit_body is not None and _is_sdk(request):
            return self._detect_version(sandbox_id, target, target.edit_body)
        reader = reader_of(self._version(request, place, sandbox_id))
        if reader is None:
            return target
        # Compressed or partial responses cannot be converted.
        for name in (hdrs.ACCEPT_ENCODING, hdrs.RANGE, hdrs.SEC_WEBSOCKET_EXTENSIONS):
            target.headers.popall(name, None)
        return msgspec.structs.replace(target, reader=reader)

    def _detect_version(
        self, sandbox_id: str, target: ProxyTarget, edit: Callable[[bytes], bytes]
    ) -> ProxyTarget:
        """Return a target that detects the version in the body and adds the cookie."""
        more: CIMultiDict[str] = CIMultiDict()

        def change(body: bytes) -> bytes:
            version = version_of_start(body)
            if version is not None:
                more.add(hdrs.SET_COOKIE, _cookie(version, target.confines.prefix))
                self._note(sandbox_id, version)
            return edit(body)

        return msgspec.structs.replace(target, edit_body=change, more_headers=more)

    def _note(self, sandbox_id: str, version: Version) -> None:
        self._seen[sandbox_id] = version
        if len(self._seen) > _MAX_SANDBOXES:
            # One atomic call, because `change` runs in several threads.
            self._seen.popitem(last=False)

    def _version(self, request: web.Request, place: PortRequest, sandbox_id: str) -> Version | None:
        """Return the version to convert the response for, or None to leave it unchanged."""
        sent = request.get(SDK_VERSION)
        if frames.is_upgrade(request) and place.path.startswith(_SOCKET):
            return sent or (self._seen.get(sandbox_id) if _is_old_socket(request, place) else None)
        if request.method != hdrs.METH_GET or not _EVENTS.match(place.path):
            return None
        return sent or parse_version(request.cookies.get(COOKIE, ""))


def _is_sdk(request: web.Request) -> bool:
    return request.headers.get(hdrs.USER_AGENT, "").startswith(HTTP_CLIENT)


def _is_old_socket(request: web.Request, place: PortRequest) -> bool:
    agent = request.headers.get(hdrs.USER_AGENT, "")
    has_key = bool(rewrite.find_parameters(place.query, KEY_PARAMETER))
    return has_key and _SOCKET_CLIENT.match(agent) is not None


def _cookie(version: Version, path: str) -> str:
    return f"{COOKIE}={write_version(version)}; Path={path or '/'}; HttpOnly; SameSite=Strict"
