"""A registry of images on loopback, with one image, and with the ways in which a pull fails."""

import asyncio
import base64
import gzip
import hashlib
import io
import json
import os
import tarfile
from types import TracebackType
from typing import Self

from aiohttp import web

USER, PASSWORD = "puller", "open sesame"  # of this registry alone
ABSENT = "absent"
"""A name under which it has nothing."""
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_CONFIG = "application/vnd.docker.container.image.v1+json"


class Registry:
    """Serves one image under any name but one with the tag 1 to who logs in; `flow` holds back its end."""

    def __init__(self, size: int = 3_000_000) -> None:
        """The image has that many bytes."""
        self._size = size
        self.flow = asyncio.Event()
        self.flow.set()
        self._blobs: dict[str, bytes] = {}
        self._manifest = self._make_image()
        self._runner: web.AppRunner | None = None
        self.address = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/v2/", self._get_root)
        app.router.add_get("/v2/{name}/manifests/{tag}", self._get_manifest)
        app.router.add_get("/v2/{name}/blobs/{digest}", self._get_blob)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = f"127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.flow.set()
        if self._runner is not None:
            await self._runner.cleanup()

    def logins(self) -> str:
        """Return the file that a login at this registry leaves."""
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        return json.dumps({"auths": {self.address: {"auth": login}}})

    async def _get_root(self, request: web.Request) -> web.Response:
        # It is here that an engine finds out how to log in.
        if not _is_in(request):
            return _refuse(401, "UNAUTHORIZED", "authentication required")
        return web.json_response({})

    async def _get_manifest(self, request: web.Request) -> web.Response:
        if not _is_in(request):
            return _refuse(401, "UNAUTHORIZED", "authentication required")
        if request.match_info["name"] == ABSENT:
            return _refuse(404, "NAME_UNKNOWN", "repository name not known to registry")
        digest = _digest(self._manifest)
        if request.match_info["tag"] not in ("1", digest):
            return _refuse(404, "MANIFEST_UNKNOWN", "manifest unknown")
        headers = {"Docker-Content-Digest": digest}
        return web.Response(body=self._manifest, content_type=_MANIFEST, headers=headers)

    async def _get_blob(self, request: web.Request) -> web.StreamResponse:
        blob = self._blobs[request.match_info["digest"]]
        response = web.StreamResponse(headers={"Content-Length": str(len(blob))})
        await response.prepare(request)
        half = len(blob) // 2
        await response.write(blob[:half])
        await self.flow.wait()
        await response.write(blob[half:])
        return response

    def _make_image(self) -> bytes:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            info = tarfile.TarInfo("content")
            info.size = self._size
            # What cannot be packed, so that it takes its time; and another image each time.
            tar.addfile(info, io.BytesIO(os.urandom(self._size)))
        layer = gzip.compress(packed.getvalue(), 1)
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Cmd": ["/content"]},
                "rootfs": {"type": "layers", "diff_ids": [_digest(packed.getvalue())]},
            }
        ).encode()
        self._blobs = {_digest(layer): layer, _digest(config): config}
        return json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": _describe(config, _CONFIG),
                "layers": [_describe(layer, _LAYER)],
            }
        ).encode()


def _describe(blob: bytes, kind: str) -> dict[str, object]:
    return {"mediaType": kind, "size": len(blob), "digest": _digest(blob)}


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _is_in(request: web.Request) -> bool:
    login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    return request.headers.get("Authorization") == f"Basic {login}"


def _refuse(status: int, code: str, message: str) -> web.Response:
    headers = {"WWW-Authenticate": 'Basic realm="here"'} if status == 401 else {}
    body = {"errors": [{"code": code, "message": message}]}
    return web.json_response(body, status=status, headers=headers)
