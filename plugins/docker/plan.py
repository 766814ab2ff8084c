"""Turns an order into what the engine is asked to make. Pure."""

import io
import posixpath
import re
import shlex
import tarfile
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec

from agentsvc.base import OrderRejected, Secret
from agentsvc.plugin import Isolation, Order, Spec, choose_ports, fill, is_below, working_dir

from . import names
from .settings import DockerConfig

type Json = dict[str, Any]

WORKSPACE: Final = "/workspace"
PRIVATE: Final = "/run/agentsvc"
TOOLS: Final = "/opt/agent-server"
"""Where the agent server is in our image, and in containers of images that have none."""
CALLBACK_NAME: Final = "agentsvc.internal"
"""The name by which this server is known inside a sandbox."""

_CALLBACK_VARIABLE: Final = "OH_WEBHOOKS_0_BASE_URL"
_ENV_FILE: Final = f"{PRIVATE}/env"
_FENCE_FILE: Final = f"{PRIVATE}/fence.py"
_OWNER: Final = 1000
_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{2,62}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBERS: Final = re.compile(r"[0-9]+(:[0-9]+)?")
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TMPFS: Final = "rw,nosuid,nodev,mode=1777"
_DEAD_SOCKETS: Final = ("docker.sock", "podman.sock", "containerd.sock", "crio.sock")
_SOCKET_DIRS: Final = ("/run", "/var/run", "/var/lib/docker", "/var/lib/containers")

PYTHONS: Final = f"{TOOLS}/bin/python /usr/local/bin/python3 /usr/bin/python3"
"""Where an image may have a Python that the agent could not have put there."""

# What comes before the command: the secrets, which the engine is not told of, and the directories.
# Where the image has a Python, it closes io_uring.
ENTRY: Final = (
    f'. {_ENV_FILE} && mkdir -p "$0" && cd "$0" && '
    f"for python in {PYTHONS}; do "
    f'if [ -x $python ] && [ -r {_FENCE_FILE} ]; then exec $python -I -S {_FENCE_FILE} "$@"; fi; '
    'done && exec "$@"'
)
INSIDE: Final = f'. {_ENV_FILE}; exec "$@"'

_GVISOR: Final = re.compile(r"runsc|gvisor", re.IGNORECASE)
_VM: Final = re.compile(r"kata|firecracker", re.IGNORECASE)


class Mount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A directory of the engine's machine inside a sandbox."""

    source: Annotated[str, msgspec.Meta(pattern=r"^/[^:\0]*$", max_length=1024)]
    target: Annotated[str, msgspec.Meta(pattern=r"^/[^:\0]+$", max_length=1024)]
    writable: bool = False


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a spec for this backend may say in `options`."""

    runtime: str = ""
    """OCI runtime by name; empty for that of the backend's table."""
    user: str = ""
    """User and group as numbers; empty for that of the backend's table."""
    read_only: bool = False
    """Nothing but the workspace and /tmp can be written to."""
    tmpfs: dict[str, str] = {}
    """Further directories in memory, with their mount options."""
    mounts: tuple[Mount, ...] = ()
    workspace: Annotated[str, msgspec.Meta(pattern=r"^/[A-Za-z0-9_./-]+$")] = WORKSPACE
    """Where the volume with the sandbox's files is."""
    host_labels: dict[str, str] = {}
    """What the engine's entry in `hosts` must have among its labels."""
    shm_bytes: Annotated[int, msgspec.Meta(ge=65536)] = 256 * 1024 * 1024
    """Size of /dev/shm, which browsers need."""


class ImageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an image says of itself."""

    id: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    env: tuple[str, ...] = ()
    tools: str = ""
    """The volume with the agent server, which the image itself does not have."""
    labels: dict[str, str] = {}


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of a sandbox that is to be made."""

    network: str
    """The name of the network the sandbox is in."""
    address: str
    """Its own one there."""
    hosts: tuple[str, ...] = ()
    """Names with their addresses, as the engine takes them: `NAME:ADDRESS`."""
    is_calling: bool = False
    """Whether there is a way to this server."""
    publish: str = ""
    """The address at which its ports are published; empty where they are not."""
    proxy_url: str = ""
    dns_address: str = ""
    """The address of the network's own DNS server on this machine; empty where it has none there."""
    guard: str = ""
    """`no`, or the ports of the engine's machine that are open to it, with commas between them."""


def to_options(asked: Spec | Order) -> Options:
    """Return the options; raises OrderRejected for what is not one."""
    try:
        return msgspec.convert(asked.options, Options)
    except msgspec.ValidationError as exc:
        raise OrderRejected(f"The options do not fit: {exc}") from exc


def to_image(inspected: Json) -> ImageInfo:
    """Return what matters of an image."""
    config = inspected.get("Config") or {}
    return ImageInfo(
        id=inspected.get("Id", ""),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        command=tuple(config.get("Cmd") or ()),
        user=config.get("User") or "",
        env=tuple(config.get("Env") or ()),
        labels=config.get("Labels") or {},
    )


def in_base(agent: ImageInfo, base: ImageInfo, tools: str) -> ImageInfo:
    """Return an image with the agent server of another one, from a volume."""
    return msgspec.structs.replace(
        base, entrypoint=agent.entrypoint, command=agent.command, tools=tools
    )


def isolation_of(runtime: str) -> Isolation:
    """Return how far containers of a runtime are kept apart."""
    if _GVISOR.search(runtime):
        return Isolation.GVISOR
    return Isolation.VM if _VM.search(runtime) else Isolation.CONTAINER


def check(asked: Spec | Order, config: DockerConfig) -> None:
    """Raise OrderRejected for what could never be made."""
    options = to_options(asked)
    if not asked.image:
        raise OrderRejected("A docker sandbox needs an image")
    if isinstance(asked, Order):
        _check_order(asked)
    ports = choose_ports(asked.ports)
    for text in (*(asked.command or ()), *asked.env.values()):
        fill(text, ports)
    if options.user and not _NUMBERS.fullmatch(options.user):
        raise OrderRejected("The option `user` is a number, or two with a colon between them")
    working_dir(asked.working_dir, options.workspace)
    for mount in options.mounts:
        check_mount(mount, config.bind_mounts)
    for target in (*options.tmpfs, *(mount.target for mount in options.mounts)):
        if _overlap(posixpath.normpath(target), PRIVATE):
            raise OrderRejected(f"Nothing can be mounted at {target}")


def _check_order(order: Order) -> None:
    if not _ID.fullmatch(order.sandbox_id):
        raise OrderRejected("The sandbox's id cannot be part of a container's name")
    if bad := [name for name in order.secret_env if not _VARIABLE.fullmatch(name)]:
        raise OrderRejected(f"`{bad[0]}` cannot be the name of a variable")


def check_mount(mount: Mount, allowed: Iterable[str]) -> None:
    """Raise OrderRejected unless a mount's source lies below one of the allowed directories."""
    source = posixpath.normpath(mount.source)
    if source.endswith(_DEAD_SOCKETS) or any(_overlap(source, one) for one in _SOCKET_DIRS):
        raise OrderRejected(f"{mount.source} is the engine's own and is not mounted in a sandbox")
    if not any(is_below(source, posixpath.normpath(one)) for one in allowed):
        raise OrderRejected(
            f"{mount.source} is not below one of the backend's `bind_mounts`; add it there"
        )


def user_of(image: ImageInfo, options: Options, config: DockerConfig) -> str:
    """Return the user a sandbox runs as: never root, unless that was asked for."""
    if asked := options.user or config.user:
        return asked
    return f"{_OWNER}:{_OWNER}" if image.user.partition(":")[0] in ("", "0", "root") else image.user


def argv_of(order: Order, image: ImageInfo, ports: Mapping[str, int]) -> list[str]:
    """Return the command line; raises OrderRejected where neither order nor image has one."""
    command = image.command if order.command is None else order.command
    argv = [*image.entrypoint, *(fill(part, ports) for part in command)]
    if not argv:
        raise OrderRejected(f"The image `{order.image}` has no command, and the spec has none")
    return argv


def environment_of(order: Order, ports: Mapping[str, int], place: Placement) -> dict[str, str]:
    """Return the variables that are no secret."""
    env = {name: fill(value, ports) for name, value in order.env.items()}
    if not place.proxy_url:
        return env
    direct = f"localhost,127.0.0.1,::1,{CALLBACK_NAME}"
    proxy = {"HTTP_PROXY": place.proxy_url, "HTTPS_PROXY": place.proxy_url, "NO_PROXY": direct}
    return {**proxy, **{name.lower(): value for name, value in proxy.items()}, **env}


def container(
    order: Order,
    image: ImageInfo,
    config: DockerConfig,
    *,
    place: Placement,
    has_init: bool,
    instance_id: str,
    base: str = "",
    has_volume: bool = True,
    is_podman: bool = False,
) -> Json:
    """Return the body of the request that makes a sandbox's container.

    `base` is the image below the layer that the image is, if it is one; without `has_volume` the
    working directory is in the container itself.
    """
    options = to_options(order)
    ports = choose_ports(order.ports)
    env = environment_of(order, ports, place)
    directory = working_dir(order.working_dir, options.workspace)
    if options.read_only or image.tools:
        env.setdefault("HOME", f"{options.workspace}/.home")
    if image.tools:
        own = dict(text.partition("=")[::2] for text in image.env).get("PATH", _PATH)
        env.setdefault("PATH", f"{own}:{TOOLS}/base/path")
    runtime = options.runtime or config.runtime
    return {
        "Image": image.id or order.image,
        "Entrypoint": ["/bin/sh", "-c", ENTRY, directory],
        "Cmd": argv_of(order, image, ports),
        "Env": [f"{name}={value}" for name, value in env.items()],
        "User": user_of(image, options, config),
        "WorkingDir": "/",
        "Labels": {
            **names.labels(instance_id, order.sandbox_id, "sandbox"),
            **_labels(order, ports, place, directory),
            "agentsvc.runtime": runtime,
            # Also where it is what it was, so that no image says it.
            names.BASE: base or image.id,
        },
        "ExposedPorts": {f"{number}/tcp": {} for number in ports.values()},
        "HostConfig": {
            **limits_of(order),
            **_hardened(options, has_init=has_init),
            **({"Runtime": runtime} if runtime else {}),
            # Podman gives every container a second address, by which it could reach its machine.
            **({"Sysctls": {"net.ipv6.conf.all.disable_ipv6": "1"}} if is_podman else {}),
            "ReadonlyRootfs": options.read_only,
            "Mounts": mounts(order, options, image.tools, has_volume=has_volume),
            "NetworkMode": place.network,
            "ExtraHosts": list(place.hosts),
            "PortBindings": bindings(ports, place.publish),
        },
        "NetworkingConfig": {
            "EndpointsConfig": {
                place.network: {"IPAMConfig": {"IPv4Address": place.address}},
            }
        },
    }


def _labels(
    order: Order, ports: Mapping[str, int], place: Placement, directory: str
) -> dict[str, str]:
    return {
        "agentsvc.ports": ",".join(f"{name}={number}" for name, number in ports.items()),
        "agentsvc.awaited": ",".join(port.name for port in order.ports if port.awaited),
        "agentsvc.workdir": directory,
        "agentsvc.limits": ",".join(set_limits(order)),
        "agentsvc.network": order.network,
        "agentsvc.guard": place.guard,
        "agentsvc.dns": place.dns_address,
        "agentsvc.callback": "yes" if place.is_calling else "no",
    }


def callback_of(env: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the host and port to which a sandbox is ordered to report."""
    url = urlsplit(env.get(_CALLBACK_VARIABLE, ""))
    if not url.hostname:
        return None
    return url.hostname, url.port or (443 if url.scheme == "https" else 80)


def bindings(ports: Mapping[str, int], address: str) -> Json:
    """Return which ports are published at an address; the engine chooses their numbers."""
    if not address:
        return {}
    return {f"{number}/tcp": [{"HostIp": address, "HostPort": ""}] for number in ports.values()}


def limits_of(order: Order) -> Json:
    """Return the limits as the engine's own; without one, none."""
    limits = order.limits
    found: Json = {}
    if limits.cpus is not None:
        found["NanoCpus"] = int(limits.cpus * 1_000_000_000)
    if limits.memory_bytes is not None:
        found |= {"Memory": limits.memory_bytes, "MemorySwap": limits.memory_bytes}
    if limits.pids is not None:
        found["PidsLimit"] = limits.pids
    if limits.open_files is not None:
        most = limits.open_files
        found["Ulimits"] = [{"Name": "nofile", "Soft": most, "Hard": most}]
    return found


def set_limits(order: Order) -> list[str]:
    """Return the names of the limits an order has."""
    limits = msgspec.structs.asdict(order.limits)
    return [name for name, value in limits.items() if value is not None]


def _hardened(options: Options, *, has_init: bool) -> Json:
    return {
        "Init": has_init,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "IpcMode": "private",
        "ShmSize": options.shm_bytes,
        "RestartPolicy": {"Name": "no"},
        "Tmpfs": ({"/tmp": _TMPFS} if options.read_only else {}) | options.tmpfs,  # noqa: S108
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "2"}},
    }


def needs_volume(runtime: str, *, is_read_only: bool) -> bool:
    """Say whether the files cannot be in the container itself.

    There, gVisor may keep them to itself, and lose them when the container is stopped.
    """
    return is_read_only or isolation_of(runtime) is Isolation.GVISOR


def mounts(order: Order, options: Options, tools: str, *, has_volume: bool = True) -> list[Json]:
    """Return the volumes and the allowed directories of the engine's machine."""
    own = [_volume(names.private(order.sandbox_id), PRIVATE)]
    if has_volume:
        own.insert(0, _volume(names.workspace(order.sandbox_id), options.workspace))
    if tools:
        own.append({**_volume(tools, TOOLS), "ReadOnly": True})
    return own + [
        {
            "Type": "bind",
            "Source": posixpath.normpath(mount.source),
            "Target": posixpath.normpath(mount.target),
            "ReadOnly": not mount.writable,
        }
        for mount in options.mounts
    ]


def private_archive(secret_env: Mapping[str, Secret], fence: bytes) -> bytes:
    """Return the archive with the files that the entry reads, readable inside for everyone.

    `fence` is the program that runs the command.
    """
    text = "".join(
        f"export {name}={shlex.quote(value.reveal())}\n" for name, value in secret_env.items()
    )
    return _archive([_file("env", text.encode(), 0o444), _file("fence.py", fence, 0o444)])


def checkpoint_archive(
    programs: Mapping[str, bytes], rollback: str, group: int, *, may_write: bool
) -> bytes:
    """Return the archive with what keeps checkpoints, and the one to which the next start goes back.

    Only that group gets to them, unless anybody `may_write`.
    """
    store, info = _directory("checkpoints", (0, group)), _file("rollback", rollback.encode(), 0o444)
    store[0].mode = 0o777 if may_write else 0o770
    return _archive([*_files(programs), info, store])


def workspace_archive(
    owner: tuple[int, int], directories: Iterable[str], *, top: str = "."
) -> bytes:
    """Return the archive that gives the workspace, and directories in it, to their user.

    `top` is what the workspace itself is called in it.
    """
    return _archive(_directory(name, owner) for name in (top, *directories))


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """Return an archive of files that everyone may read, with the directories they are in."""
    return _archive(_files(files))


def parse_user(user: str, passwd: str = "") -> tuple[int, int] | None:
    """Return the numbers of a user, from an image's /etc/passwd if it is a name."""
    name, _, group = user.partition(":")
    if name.isdecimal():
        return int(name), int(group) if group.isdecimal() else int(name)
    for line in passwd.splitlines():
        # Whoever made the image may have written anything there.
        parts = line.split(":")
        if parts[0] == name and [one.isdecimal() for one in parts[2:4]] == [True, True]:
            return int(parts[2]), int(parts[3])
    return None


def home_in(user: str, passwd: str) -> str:
    """Return the home of a user, by name or number, from an image's /etc/passwd; empty without one."""
    name = user.partition(":")[0]
    for line in passwd.splitlines():
        parts = line.split(":")
        if len(parts) > 5 and name in (parts[0], parts[2]):  # noqa: PLR2004
            return parts[5]
    return ""


def _volume(name: str, target: str) -> Json:
    return {"Type": "volume", "Source": name, "Target": target}


def _archive(items: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for info, content in items:
            tar.addfile(info, io.BytesIO(content))
    # Podman stops reading at the end that is marked, and fails if there is more to be read.
    return packed.getvalue()[: tar.offset]


def _file(name: str, content: bytes, mode: int) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    return info, content


def _files(files: Mapping[str, bytes]) -> list[tuple[tarfile.TarInfo, bytes]]:
    parts = [name.split("/")[:-1] for name in files]
    above = {"/".join(part[: count + 1]) for part in parts for count in range(len(part))}
    return [
        *(_directory(name, (0, 0)) for name in sorted(above)),
        *(_file(name, content, 0o644) for name, content in files.items()),
    ]


def _directory(name: str, owner: tuple[int, int]) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    info.uid, info.gid = owner
    return info, b""


def _overlap(path: str, other: str) -> bool:
    return is_below(path, other) or is_below(other, path)
