"""Creates and removes the objects of a sandbox on one engine; each step is idempotent.

Every object gets its labels at creation. If a name is in use by a foreign object, the order is
refused, and that object is left alone.
"""

import asyncio
import contextlib
import ipaddress
import os
import posixpath
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import msgspec

from agentsvc.base import AgentsvcError, BackendUnavailable, Conflict, OrderRejected
from agentsvc.plugin import LongTasks, Network, Order, working_dir

from . import firewall, gateways, inspection, names, networks, tools
from .engine import Engine, EngineInfo
from .failures import CONFLICT
from .images import ImagePulls
from .layers import Layers
from .plan import (
    CALLBACK_NAME,
    PRIVATE,
    ImageInfo,
    Json,
    Mount,
    Placement,
    archive_of,
    callback_of,
    check_mount,
    container,
    in_base,
    needs_volume,
    parse_user,
    private_archive,
    to_options,
    user_of,
    workspace_archive,
)
from .reach import listens
from .settings import DockerConfig
from .streams import read_file
from .transfer import Transfer, paths_of

_CLEANING_UP = "stopped"
_NO_INIT = re.compile(r"catatonit|container-init|init binary")
_RESOLVE_SECONDS = 3.0
_DOCUMENTATION_ADDRESS = "192.0.2.1"
"""An address of a documentation range, which no network normally has."""
_FILL_SECONDS = 1800.0
_FILLED = "filled"
"""The file that names the sandbox whose files were copied into this one."""
_REMOVE_TRIES = 40
_REMOVE_SECONDS = 0.25

type FindSource = Callable[[], Awaitable[tuple[Engine, Json]]]
"""Finds the container whose files are copied; raises OrderRejected if it is gone."""


class Maker:
    """Creates and removes sandboxes of one installation on one engine."""

    def __init__(
        self,
        engine: Engine,
        config: DockerConfig,
        images: ImagePulls,
        layers: Layers,
        instance_id: str,
        *,
        copies: LongTasks,
    ) -> None:
        self._engine = engine
        self._config = config
        self._images = images
        self._layers = layers
        self._instance_id = instance_id
        self._copies = copies

    async def make(self, order: Order, find_source: FindSource) -> None:
        """Create all objects and start the sandbox; existing objects are kept.

        If it starts with a copy of another sandbox's files, raise StillFetching until they are
        copied.
        """
        found = await self.find(names.container(order.sandbox_id), order.sandbox_id)
        if found is not None and inspection.status_of(found) != "created":
            return
        if order.copy_of:
            await self._copies.go_on(
                order.sandbox_id, lambda: self._create_copy(order, found, find_source)
            )
        else:
            await self.start(await self._prepare(order))

    async def _create_copy(self, order: Order, found: Json | None, find_source: FindSource) -> None:
        """Create all objects, copy the files unless that is done, and start the sandbox."""
        if found is not None and not await self._is_filled(found["Id"]):
            # Files of an earlier, partial copy may have been deleted in the source since.
            await self._engine.remove(f"containers/{found['Id']}", force=True)
            await self._remove_volume(names.workspace(order.sandbox_id))
        made = await self._prepare(order)
        if not await self._is_filled(made):
            engine, source = await find_source()
            transfer = Transfer((engine, source["Id"]), (self._engine, made))
            for path in await paths_of(engine, source, may_have_state=True):
                await transfer.bring(path)
            await self._engine.put(made, PRIVATE, archive_of({_FILLED: order.copy_of.encode()}))
        await self.start(made)

    async def _is_filled(self, container_id: str) -> bool:
        return bool(await read_file(self._engine, container_id, f"{PRIVATE}/{_FILLED}"))

    async def _prepare(self, order: Order) -> str:
        """Create all objects; return the id of the container, which does not run yet."""
        facts = await self._engine.facts()
        if not self._engine.is_remote:
            await asyncio.to_thread(check_links, to_options(order).mounts, self._config.bind_mounts)
        image = await self._start_image(order)
        place = await self._networks(order, facts)
        await self._volumes(order, facts)
        return await self._container(order, image, place, facts)

    async def find(self, name: str, sandbox_id: str) -> Json | None:
        """Return this sandbox's container of that name, or None; foreign containers are ignored."""
        found: Json | None = await self._engine.get(f"containers/{name}/json")
        labels = inspection.labels_of(found or {})
        return found if names.is_own(labels, self._instance_id, sandbox_id) else None

    async def start(self, container_id: str) -> None:
        """Start a container; does nothing if it runs."""
        await self._engine.ask("POST", f"containers/{container_id}/start")

    async def start_again(self, sandbox_id: str, container: Json) -> None:
        """Start a stopped sandbox, after its gateway and firewall rules."""
        await self.prepare_start(sandbox_id, container)
        await self.start(container["Id"])

    async def prepare_start(self, sandbox_id: str, container: Json) -> None:
        """Restore the gateway and the firewall rules of a stopped sandbox."""
        gateway = await self.find(names.gateway(sandbox_id), sandbox_id)
        if gateway is not None and not (gateway.get("State") or {}).get("Running"):
            await self.start(gateway["Id"])
        # The machine loses its rules at a reboot.
        if closed := await self.closed_bridge(sandbox_id, container):
            await firewall.close(*closed)
        await self._wait_for_cleanup(container["Id"])

    async def _wait_for_cleanup(self, container_id: str) -> None:
        """Wait until the engine has cleaned up after a container's last run.

        Podman cleans up after it has reported the container as ended; without root, a container
        that is started earlier gets no ports.
        """
        for _ in range(_REMOVE_TRIES):
            found = await self._engine.get(f"containers/{container_id}/json")
            if inspection.status_of(found or {}) != _CLEANING_UP:
                return
            await asyncio.sleep(_REMOVE_SECONDS)

    async def closed_bridge(
        self, sandbox_id: str, container: Json
    ) -> tuple[str, list[int], str] | None:
        """Return the bridge that is closed to this machine, its open ports and its DNS address."""
        facts = await self._engine.facts()
        labels = inspection.labels_of(container)
        if not self.may_guard(facts):
            return None
        if labels.get("agentsvc.network") != Network.OPEN:
            return (names.bridge(names.inner(sandbox_id)), [], "") if facts.is_podman else None
        guard = labels.get("agentsvc.guard", "no")
        if guard == "no":
            return None
        ports = [int(port) for port in guard.split(",") if port]
        return names.bridge(names.outer(sandbox_id)), ports, labels.get("agentsvc.dns", "")

    async def remove(self, sandbox_id: str) -> None:
        """Remove all objects of a sandbox, and return when they are gone."""
        for number in range(_REMOVE_TRIES):
            if not await self._remove_once(sandbox_id):
                break
            # The first repetition only checks that all is gone, so it needs no delay.
            await asyncio.sleep(_REMOVE_SECONDS if number else 0)
        else:
            raise BackendUnavailable(
                "The engine does not remove all objects of the sandbox", detail=sandbox_id
            )
        if self.may_guard(await self._engine.facts()):
            for network in (names.outer(sandbox_id), names.inner(sandbox_id)):
                await firewall.reopen(names.bridge(network))

    async def _remove_once(self, sandbox_id: str) -> bool:
        """Remove the existing objects; return whether there were any."""
        containers = await self._list_own("containers", sandbox_id)
        for one in containers:
            await self._engine.remove(f"containers/{one['Id']}", force=True, v=True)
        own_networks = await self._list_own("networks", sandbox_id)
        for network in own_networks:
            await networks.remove(self._engine, network["Name"])
        volumes = await self._list_own("volumes", sandbox_id)
        for volume in volumes:
            await self._engine.remove(f"volumes/{volume['Name']}")
        return bool(containers or own_networks or volumes)

    async def _list_own(self, kind: str, sandbox_id: str) -> list[Json]:
        found = await self._engine.listed(kind, names.of_sandbox(self._instance_id, sandbox_id))
        # Podman combines label filters with OR instead of AND.
        return [
            one for one in found if names.is_own(one.get("Labels"), self._instance_id, sandbox_id)
        ]

    async def mark_paused(self, sandbox_id: str) -> None:
        """Mark a sandbox as paused on the engine, so that its end is not a failure."""
        await self._volume(names.paused(sandbox_id), sandbox_id, "paused")

    async def unmark_paused(self, sandbox_id: str) -> None:
        """Remove the mark."""
        await self._remove_volume(names.paused(sandbox_id))

    async def is_marked_paused(self, sandbox_id: str) -> bool:
        """Return whether a sandbox is marked as paused."""
        return await self._has_volume(names.paused(sandbox_id), sandbox_id)

    async def has_files(self, sandbox_id: str) -> bool:
        """Return whether the sandbox's workspace exists."""
        return await self._has_volume(names.workspace(sandbox_id), sandbox_id)

    # Parts of a sandbox

    async def _start_image(self, order: Order) -> ImageInfo:
        """Return the image of a sandbox; with a base image, combine it with the agent server."""
        begun = await self._files_image(order)
        if not order.base:
            return begun
        agent = await self._image(order.image)
        return in_base(agent, begun, await tools.ensure(self._engine, agent))

    async def _files_image(self, order: Order) -> ImageInfo:
        if order.layer:
            found = await self._layers.find(self._engine, order.layer)
            if found is not None:
                return found
            if not await self.has_files(order.sandbox_id):
                raise OrderRejected("The prepared files that the sandbox starts from are gone")
        # Once started from a layer, a sandbox has its files in its volume.
        return await self._image(order.base or order.image)

    def _has_volume_for(self, order: Order, facts: EngineInfo) -> bool:
        options = to_options(order)
        runtime = options.runtime or self._config.runtime or facts.default_runtime
        return not order.layer or needs_volume(runtime, is_read_only=options.read_only)

    async def _image(self, name: str) -> ImageInfo:
        return await self._images.get(self._engine, name)

    async def _networks(self, order: Order, facts: EngineInfo) -> Placement:
        sandbox_id, pool = order.sandbox_id, self._config.subnets
        labels = names.labels(self._instance_id, sandbox_id, "network")
        outer = names.outer(sandbox_id)
        part = await networks.ensure(self._engine, pool, outer, is_inner=False, labels=labels)
        bridge, gateway, sandbox = networks.addresses(part)
        publish = "" if facts.is_beside else self._engine.publish_address
        callback = callback_of(order.env)
        hosts, is_calling = await self._callback_hosts(callback, facts, bridge)
        if order.network == Network.OPEN:
            ports = {callback[1]} if callback and hosts and is_calling else set()
            dns_address = bridge if facts.is_podman else ""
            return Placement(
                network=outer,
                address=sandbox,
                hosts=hosts,
                is_calling=is_calling,
                publish=publish,
                guard=await self._guard(order, ports, facts, dns_address),
                dns_address=dns_address,
            )
        inner = names.inner(sandbox_id)
        if facts.is_podman:
            await firewall.close(names.bridge(inner), [])
        part = await networks.ensure(self._engine, pool, inner, is_inner=True, labels=labels)
        _, inner_gateway, inner_sandbox = networks.addresses(part)
        is_named = callback is not None and not _is_address(callback[0])
        if not is_calling or not is_named:
            callback = None
        image = await self._image(self._config.gateway_image or order.image)
        body = gateways.body(
            order,
            image.id,
            networks=(outer, inner),
            addresses=(gateway, inner_gateway, inner_sandbox),
            publish=publish,
            callback=callback,
            hosts=hosts,
            has_init=facts.has_init,
            instance_id=self._instance_id,
        )
        await self._gateway(order, body, inner, inner_gateway)
        return Placement(
            network=inner,
            address=inner_sandbox,
            hosts=(f"{callback[0]}:{inner_gateway}",) if callback else (),
            is_calling=callback is not None,
            proxy_url=f"http://{inner_gateway}:{gateways.PROXY_PORT}",
        )

    async def _guard(self, order: Order, ports: set[int], facts: EngineInfo, dns: str) -> str:
        """Close the engine's machine to an open sandbox; return the open ports for the label."""
        if not self.may_guard(facts):
            return "no"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RESOLVE_SECONDS):
                ports |= set(await asyncio.to_thread(firewall.own_ports, order.reaches))
        bridge = names.bridge(names.outer(order.sandbox_id))
        await firewall.close(bridge, sorted(ports), dns)
        return ",".join(map(str, sorted(ports)))

    def may_guard(self, facts: EngineInfo) -> bool:
        """Return whether this server can close the engine's machine to sandboxes."""
        is_near = facts.is_beside and not self._engine.is_remote
        return self._config.guard_host and is_near and firewall.can_guard()

    async def _callback_hosts(
        self, callback: tuple[str, int] | None, facts: EngineInfo, bridge: str
    ) -> tuple[tuple[str, ...], bool]:
        """Return the host entries that a sandbox needs to reach this server, and whether it can."""
        if callback is None:
            return (), False
        (host, port), limit = callback, self._config.connect_seconds
        if host != CALLBACK_NAME:
            return (), not _is_loopback(host)
        if facts.is_beside:
            # Podman creates a bridge only when a container is in its network.
            near = _own_address(bridge) if facts.is_podman else bridge
            return (f"{host}:{bridge}",), await listens(near, port, limit)
        if self._engine.is_remote:
            return (), False
        if facts.knows_its_machine:
            return (f"{host}:host-gateway",), True
        near = _own_address(_DOCUMENTATION_ADDRESS)
        return (f"{host}:{near}",), await listens(near, port, limit)

    async def _gateway(self, order: Order, body: Json, inner: str, address: str) -> None:
        name = names.gateway(order.sandbox_id)
        found = await self.find(name, order.sandbox_id)
        container_id = found["Id"] if found else await self._create(name, body)
        await self._engine.put(container_id, "/", await asyncio.to_thread(gateways.archive, order))
        attached = ((found or {}).get("NetworkSettings") or {}).get("Networks") or {}
        if inner not in attached:
            await self._engine.ask(
                "POST",
                f"networks/{inner}/connect",
                body={
                    "Container": container_id,
                    "EndpointConfig": {"IPAMConfig": {"IPv4Address": address}},
                },
            )
        await self.start(container_id)

    async def _volumes(self, order: Order, facts: EngineInfo) -> None:
        sandbox_id = order.sandbox_id
        if self._has_volume_for(order, facts):
            await self._volume(names.workspace(sandbox_id), sandbox_id, "workspace")
        await self._volume(names.private(sandbox_id), sandbox_id, "private")

    async def _has_volume(self, name: str, sandbox_id: str) -> bool:
        found = await self._engine.get(f"volumes/{name}")
        return found is not None and names.is_own(
            found.get("Labels"), self._instance_id, sandbox_id
        )

    async def _volume(self, name: str, sandbox_id: str, role: str) -> None:
        found = await self._engine.get(f"volumes/{name}")
        if found is None:
            labels = names.labels(self._instance_id, sandbox_id, role)
            found = await self._engine.ask(
                "POST", "volumes/create", body={"Name": name, "Labels": labels}
            )
        if not names.is_own(found.get("Labels"), self._instance_id, sandbox_id):
            raise OrderRejected(f"The engine has a volume `{name}` that this server did not create")

    async def _container(
        self, order: Order, image: ImageInfo, place: Placement, facts: EngineInfo
    ) -> str:
        body = container(
            order,
            image,
            self._config,
            place=place,
            has_init=facts.has_init,
            instance_id=self._instance_id,
            base=image.labels.get(names.BASE, "") if order.layer else "",
            has_volume=self._has_volume_for(order, facts),
            is_podman=facts.is_podman,
        )
        # Starting from a layer, the engine now copies its files into the volume, if there is one.
        limit = _FILL_SECONDS if order.layer else None
        container_id = await self._create(names.container(order.sandbox_id), body, limit)
        fence = Path(__file__).with_name("fence_program.py").read_bytes()
        await self._engine.put(container_id, PRIVATE, private_archive(order.secret_env, fence))
        await self._give_workspace(order, image, container_id)
        return container_id

    async def _give_workspace(self, order: Order, image: ImageInfo, container_id: str) -> None:
        options = to_options(order)
        user = user_of(image, options, self._config)
        owner = parse_user(user)
        if owner is None:
            owner = parse_user(user, await read_file(self._engine, container_id, "/etc/passwd"))
        if owner is None:
            raise OrderRejected(f"The image `{order.image}` has no user `{user}`")
        inside = (
            working_dir(order.working_dir, options.workspace)
            .removeprefix(options.workspace)
            .strip("/")
        )
        parts = inside.split("/") if inside else []
        directories = ["/".join(parts[: count + 1]) for count in range(len(parts))]
        # Docker ignores the owner of an entry for the directory itself, unless it has another name.
        facts = await self._engine.facts()
        top = "." if facts.is_podman else f"../{posixpath.basename(options.workspace.rstrip('/'))}"
        archive = workspace_archive(owner, [*directories, ".home"], top=top)
        await self._engine.put(container_id, options.workspace, archive)

    async def _create(self, name: str, body: Json, time_limit: float | None = None) -> str:
        try:
            made = await self._engine.ask(
                "POST",
                "containers/create",
                params={"name": name},
                body=body,
                expect=(CONFLICT,),
                time_limit=time_limit,
            )
        except AgentsvcError as exc:
            # Podman only reports here that its init program is missing.
            if not body["HostConfig"]["Init"] or not _NO_INIT.search(exc.detail):
                raise
            without = {**body, "HostConfig": {**body["HostConfig"], "Init": False}}
            return await self._create(name, without, time_limit)
        if made is not None:
            return str(made["Id"])
        # The name is in use: by an earlier request, or by a foreign container.
        found = await self.find(name, body["Labels"][names.SANDBOX])
        if found is None:
            raise OrderRejected(
                f"The engine has a container `{name}` that this server did not create"
            )
        return str(found["Id"])

    async def _remove_volume(self, name: str) -> None:
        for _ in range(_REMOVE_TRIES):
            await self._engine.remove(f"volumes/{name}")
            if await self._engine.get(f"volumes/{name}") is None:
                return
            await asyncio.sleep(_REMOVE_SECONDS)
        raise Conflict("A volume of the sandbox is in use and cannot be removed", detail=name)


def check_links(mounts: Iterable[Mount], allowed: Iterable[str]) -> None:
    """Raise OrderRejected for a mount that links lead out of the allowed directories. Blocks.

    Anyone who can write below an allowed directory can put a link there, and an engine follows it.
    """
    real = [os.path.realpath(one) for one in allowed]
    for mount in mounts:
        leads_to = msgspec.structs.replace(mount, source=os.path.realpath(mount.source))
        try:
            check_mount(leads_to, real)
        except OrderRejected as exc:
            raise OrderRejected(
                f"{mount.source} leads out of the backend's `bind_mounts`", detail=leads_to.source
            ) from exc


def _own_address(target: str) -> str:
    """Return this machine's address for connections to another; sends no packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
        except OSError:
            return target
        return str(probe.getsockname()[0])


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
