"""The HTTP of an API server: get, list, watch, apply, patch, delete, exec, port-forward, logs.

It answers as a real one does where the plugin asks; the same plugin is held to the same kit on a
real one in `tests/live/kube`. It lives in a thread of its own, so that a test's loop may end.
"""

import asyncio
import contextlib
import copy
import importlib
import json
import threading
from asyncio.subprocess import DEVNULL, PIPE, Process
from base64 import b64encode
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self

from aiohttp import WSMsgType, web

from agentsvc.base.values import new_id
from tests.kube.node import Node, claim_of
from tests.kube.store import KINDS, Refused, Store, merged, stamp

type Json = dict[str, Any]

TOKEN = "token-of-the-tests"  # noqa: S105  # it opens nothing
_POD = "/api/v1/namespaces/{namespace}/pods/{name}"


class KubeApi:
    """One API server with one node; `url` is where it listens."""

    groups: tuple[str, ...] = ()
    """Where there is more than Kubernetes has by itself."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None
        self._transports: set[asyncio.BaseTransport] = set()
        self._ends: list[asyncio.Task[None]] = []
        self.url = ""
        self.port = 0
        self.token = TOKEN
        self.is_cut = False
        self.can_apply = True
        self.runs_pods = True
        self.refusals: dict[tuple[str, str], Refused] = {}
        """What is answered to a method for a kind."""
        self.namespaces = {"default": new_id()}
        self.metrics: list[Json] | None = None
        """What pods use, as a server of metrics tells it; None where there is none."""
        self.summaries: dict[str, Json] = {}
        """What kubelets tell, by node; of others this server may not hear."""
        self.requests: list[tuple[str, str, str]] = []
        """Method, path and query of each."""

    def __enter__(self) -> Self:
        # What a backend loads when it is opened, so that nothing with a limit waits for it.
        importlib.import_module("kubernetes_asyncio.config")
        self._thread.start()
        self.do(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def do[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the server's own loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def tell(self, change: Callable[["KubeApi"], object]) -> None:
        """Change something in the server's own loop."""

        async def change_it() -> None:
            change(self)

        self.do(change_it())

    def kubeconfig(self, path: Path, **user: Any) -> Path:
        """Write a file with the way here."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": user or {"token": self.token}}],
            "contexts": [{"name": "tests", "context": {"cluster": "c", "user": "u"}}],
        }
        path.write_text(json.dumps(config))
        return path

    def cut(self, *, is_cut: bool) -> None:
        """Cut everybody off, or let them in again."""

        def change(_: KubeApi) -> None:
            self.is_cut = is_cut
            for transport in list(self._transports) if is_cut else ():
                transport.abort()  # type: ignore[attr-defined]  # of TCP, which can

        self.tell(change)

    async def _start(self) -> None:
        self.speaks = asyncio.Event()
        self.speaks.set()
        self.store = Store()
        self.node = Node(self.store, self._directory)
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/version", self._version)
        app.router.add_get("/apis", self._groups)
        app.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self._review)
        app.router.add_get("/api/v1/namespaces/{namespace}", self._namespace)
        app.router.add_get(
            "/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods", self._metrics
        )
        app.router.add_get("/api/v1/nodes/{node}/proxy/stats/summary", self._summary)
        app.router.add_get(_POD + "/exec", self._exec)
        app.router.add_get(_POD + "/portforward", self._forward)
        app.router.add_get(_POD + "/log", self._log)
        self._add_routes(app)
        for group in ("/api/v1", "/apis/networking.k8s.io/v1", *self.groups):
            path = group + "/namespaces/{namespace}/{kind}"
            app.router.add_get(path, self._list)
            app.router.add_post(path, self._post)
            app.router.add_get(path + "/{name}", self._get)
            app.router.add_patch(path + "/{name}", self._patch)
            app.router.add_delete(path + "/{name}", self._delete)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"

    def _add_routes(self, app: web.Application) -> None:
        """Add what belongs to no namespace, where there is more than Kubernetes has by itself."""

    async def _stop(self) -> None:
        await self.node.close()
        assert self._runner is not None
        await self._runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        if self.is_cut:
            transport.abort()
            return web.Response()
        self._transports.add(transport)
        self.requests.append((request.method, request.path, request.query_string))
        await self.speaks.wait()
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return _refusal(Refused(401, "Unauthorized", "Unauthorized"))
        try:
            kind = request.match_info.get("kind", "")
            if refusal := self.refusals.get((request.method, kind)):
                raise refusal
            answer: web.StreamResponse = await handler(request)
        except Refused as exc:
            answer = _refusal(exc)
        finally:
            self._transports.discard(transport)
        return answer

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"gitVersion": "v1.20.2"})

    async def _groups(self, _: web.Request) -> web.Response:
        pairs = [path.split("/")[2:] for path in ("/apis/networking.k8s.io/v1", *self.groups)]
        found = [
            {"name": name, "versions": [{"groupVersion": f"{name}/{version}", "version": version}]}
            for name, version in pairs
        ]
        return web.json_response({"kind": "APIGroupList", "groups": found})

    async def _review(self, request: web.Request) -> web.Response:
        asked = (await request.json())["spec"]["resourceAttributes"]
        verbs = {"patch": "PATCH", "create": "PATCH", "list": "GET"}
        is_refused = (verbs[asked["verb"]], asked["resource"]) in self.refusals
        return web.json_response({"status": {"allowed": not is_refused}})

    async def _namespace(self, request: web.Request) -> web.Response:
        name = request.match_info["namespace"]
        if name not in self.namespaces:
            raise Refused(404, "NotFound", f'namespaces "{name}" not found')
        metadata = {"name": name, "uid": self.namespaces[name]}
        return web.json_response({"kind": "Namespace", "metadata": metadata})

    async def _metrics(self, _: web.Request) -> web.Response:
        if self.metrics is None:
            return web.Response(status=404, text="404 page not found\n")
        return web.json_response({"kind": "PodMetricsList", "items": self.metrics})

    async def _summary(self, request: web.Request) -> web.Response:
        node = request.match_info["node"]
        if node not in self.summaries:
            said = f'nodes "{node}" is forbidden: cannot get resource "nodes/proxy"'
            raise Refused(403, "Forbidden", said)
        return web.json_response(self.summaries[node])

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self.store.get(*_key(request)))

    async def _list(self, request: web.Request) -> web.StreamResponse:
        kind, namespace = request.match_info["kind"], request.match_info["namespace"]
        if kind not in KINDS:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        if request.query.get("watch"):
            return await self._watch(request, kind, namespace)
        found = self.store.select(kind, namespace, request.query.get("labelSelector", ""))
        found = [one for one in found if _is_chosen(request, one)]
        begin = int(request.query.get("continue") or 0)
        end = begin + int(request.query.get("limit") or len(found) or 1)
        more = str(end) if end < len(found) else ""
        if "PartialObjectMetadataList" in request.headers.get("Accept", ""):
            found = [{"metadata": one["metadata"]} for one in found]
        metadata = {"resourceVersion": str(self.store.version), "continue": more}
        return web.json_response({"metadata": metadata, "items": found[begin:end]})

    async def _watch(self, request: web.Request, kind: str, namespace: str) -> web.StreamResponse:
        version = int(request.query.get("resourceVersion", "0"))
        known: list[Json] = []
        if version:
            self.store.since(version, kind)
        else:
            # Whoever names no version is told of all there is, and then of what happens.
            selector = request.query.get("labelSelector", "")
            known, version = self.store.select(kind, namespace, selector), self.store.version
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            for one in known:
                if _is_chosen(request, one):
                    await _event(answer, "ADDED", one)
            await self._tell_of(request, answer, version)
        return answer

    async def _tell_of(
        self, request: web.Request, answer: web.StreamResponse, version: int
    ) -> None:
        kind, namespace = request.match_info["kind"], request.match_info["namespace"]
        selector = request.query.get("labelSelector", "")
        pairs = [part.split("=", 1) for part in selector.split(",") if part]
        while True:
            # What happens while this is told is news for the next round.
            changed, latest = self.store.changed, self.store.version
            try:
                news = self.store.since(version, kind)
            except Refused as exc:
                await _event(answer, "ERROR", _status(exc))
                return
            for at, what, obj in news:
                version = at
                labels = obj["metadata"].get("labels") or {}
                is_meant = all(labels.get(name) == value for name, value in pairs)
                if (
                    is_meant
                    and _is_chosen(request, obj)
                    and obj["metadata"]["namespace"] == namespace
                ):
                    await _event(answer, what, obj)
            version = latest
            bookmark = {"kind": "Pod", "metadata": {"resourceVersion": str(version)}}
            if "allowWatchBookmarks" in request.query:
                await _event(answer, "BOOKMARK", bookmark)
            await changed.wait()

    async def _patch(self, request: web.Request) -> web.Response:
        kind, namespace, name = _key(request)
        body = json.loads(await request.read())
        if request.content_type == "application/merge-patch+json":
            known = self.store.get(kind, namespace, name)
            return web.json_response(self._stored(kind, merged(known, body), known))
        if request.content_type != "application/apply-patch+yaml" or not self.can_apply:
            raise Refused(
                415, "UnsupportedMediaType", "the body of the request was in an unknown format"
            )
        known = self.store.objects.get((kind, namespace, name), {})
        if known and kind == "pods":
            return web.json_response(known)
        return web.json_response(self._stored(kind, merged(known, body), known))

    async def _post(self, request: web.Request) -> web.Response:
        kind, body = request.match_info["kind"], await request.json()
        namespace = body["metadata"].setdefault("namespace", request.match_info["namespace"])
        key = (kind, namespace, body["metadata"]["name"])
        if key in self.store.objects:
            raise Refused(409, "AlreadyExists", f'{kind} "{key[2]}" already exists')
        return web.json_response(self._stored(kind, body, {}), status=201)

    def _stored(self, kind: str, obj: Json, known: Json) -> Json:
        if kind == "services":
            obj["spec"].setdefault("clusterIP", "10.96.0.10")
        if kind == "secrets":
            told = obj.pop("stringData", {})
            coded = {key: b64encode(value.encode()).decode() for key, value in told.items()}
            obj["data"] = {**obj.get("data", {}), **coded}
        found = copy.deepcopy(self.store.put(kind, copy.deepcopy(obj)))
        is_ours = kind == "pods" and found["spec"]["containers"][0]["name"] == "sandbox"
        if is_ours and not known:
            if self.runs_pods:
                self.node.start(found)
            else:
                self.set_status(found, {"phase": "Pending"})
        return found

    def set_status(self, pod: Json, status: Json) -> None:
        """Say how a pod is, in place of its node."""
        known = self.store.get("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        metadata = dict(known["metadata"])
        self.store.put("pods", {**known, "metadata": metadata, "status": status})

    async def _delete(self, request: web.Request) -> web.Response:
        kind, namespace, name = _key(request)
        found = self.store.get(kind, namespace, name)
        body = await request.json() if request.can_read_body else {}
        wanted = (body.get("preconditions") or {}).get("uid", found["metadata"]["uid"])
        if wanted != found["metadata"]["uid"]:
            raise Refused(409, "Conflict", "the UID in the precondition does not match")
        if kind in ("pods", "persistentvolumeclaims", "volumesnapshots"):
            metadata = {**found["metadata"], "deletionTimestamp": stamp()}
            found = self.store.put(kind, {**found, "metadata": metadata})
            grace = body.get("gracePeriodSeconds")
            self._ends.append(self._loop.create_task(self._end(kind, found, grace)))
        else:
            self.store.remove(kind, namespace, name)
        return web.json_response(found)

    async def _end(self, kind: str, obj: Json, grace: float | None) -> None:
        metadata = obj["metadata"]
        if kind == "pods":
            own = obj["spec"].get("terminationGracePeriodSeconds", 30)
            await self.node.end(obj, own if grace is None else grace)
            return
        while any(
            claim_of(pod) == metadata["name"]
            for pod in self.store.select("pods", metadata["namespace"], "")
        ):
            await self.store.changed.wait()
        self.node.forget_files(metadata["name"])
        self.store.remove(kind, metadata["namespace"], metadata["name"])

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        pod = self.store.get("pods", request.match_info["namespace"], request.match_info["name"])
        socket = await _socket(request)
        container = next(
            one for one in pod["spec"]["containers"] if one["name"] == request.query["container"]
        )
        process = await asyncio.create_subprocess_exec(
            *(self.node.here(pod, container, part) for part in request.query.getall("command")),
            stdin=PIPE if "stdin" in request.query else DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            cwd=self.node.directory_in(pod, container),
            env=self.node.environment_in(pod, container),
            start_new_session=True,
        )

        async def send(channel: int, reader: asyncio.StreamReader) -> None:
            while data := await reader.read(4096):
                await socket.send_bytes(bytes((channel,)) + data)

        assert process.stdout is not None
        assert process.stderr is not None
        typing = self._loop.create_task(_type(socket, process))
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(send(1, process.stdout), send(2, process.stderr))
            code = await process.wait()
            causes = [{"reason": "ExitCode", "message": str(code)}]
            failed = {
                "status": "Failure",
                "reason": "NonZeroExitCode",
                "details": {"causes": causes},
            }
            said = failed if code else {"status": "Success"}
            await socket.send_bytes(b"\x03" + json.dumps(said).encode())
        typing.cancel()
        await asyncio.gather(typing, return_exceptions=True)
        await socket.close()
        return socket

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        pod = self.store.get("pods", request.match_info["namespace"], request.match_info["name"])
        port = int(request.query["ports"])
        socket = await _socket(request)
        for channel in (0, 1):
            await socket.send_bytes(bytes((channel,)) + port.to_bytes(2, "little"))
        try:
            reader, writer = await asyncio.open_connection(pod["status"]["podIP"], port)
        except OSError as exc:
            await socket.send_bytes(b"\x01" + str(exc).encode())
            await socket.close()
            return socket

        async def receive() -> None:
            while data := await reader.read(4096):
                await socket.send_bytes(b"\x00" + data)
            await socket.close()

        receiving = asyncio.gather(receive())
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                writer.write(message.data[1:])
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        writer.close()
        return socket

    async def _log(self, request: web.Request) -> web.StreamResponse:
        pod = self.store.get("pods", request.match_info["namespace"], request.match_info["name"])
        uid = pod["metadata"]["uid"]
        if uid not in self.node.logs:
            raise Refused(400, "BadRequest", "container is waiting to start: ContainerCreating")
        answer = web.StreamResponse()
        await answer.prepare(request)
        lines = self.node.logs[uid]
        sent = max(0, len(lines) - int(request.query.get("tailLines", "0")))
        sent = 0 if "sinceTime" in request.query else sent
        while True:
            for line in lines[sent:]:
                await answer.write(line.encode())
            sent = len(lines)
            if not request.query.get("follow") or uid not in self.node.logs:
                return answer
            await asyncio.sleep(0.02)


def _is_chosen(request: web.Request, obj: Json) -> bool:
    """Say whether an object has the field that a request chooses by: two of them are known."""
    name, _, value = request.query.get("fieldSelector", "").partition("=")
    if name == "metadata.name":
        return bool(obj["metadata"]["name"] == value)
    return name != "involvedObject.uid" or obj["involvedObject"]["uid"] == value


def _key(request: web.Request) -> tuple[str, str, str]:
    found = request.match_info
    return found["kind"], found["namespace"], found["name"]


async def _type(socket: web.WebSocketResponse, process: Process) -> None:
    """Give a command what the other side types, as long as it takes it."""
    with contextlib.suppress(ConnectionError):
        async for message in socket:
            if process.stdin is not None and message.type is WSMsgType.BINARY:
                process.stdin.write(message.data[1:])
                await process.stdin.drain()


async def _socket(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
    await socket.prepare(request)
    return socket


async def _event(answer: web.StreamResponse, what: str, obj: Json) -> None:
    await answer.write(json.dumps({"type": what, "object": obj}).encode() + b"\n")


def _status(refused: Refused) -> Json:
    return {
        "kind": "Status",
        "status": "Failure",
        "code": refused.status,
        "reason": refused.reason,
        "message": str(refused),
    }


def _refusal(refused: Refused) -> web.Response:
    return web.json_response(_status(refused), status=refused.status)
