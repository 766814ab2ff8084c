"""Translates an order to requests for the engine. Pure."""

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
"""Path of the agent server in our image, and in containers whose image has none."""
CALLBACK_NAME: Final = "agentsvc.internal"
"""The host name of this server inside a sandbox."""

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
"""Paths where an image may have a Python that the agent could not have put there."""

# The entry script runs before the command: it reads the secrets, which the engine does not get, and
# creates the directories. If the image has a Python, that blocks io_uring.
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
    """The `options` of a spec for this backend."""

    runtime: str = ""
    """OCI runtime by name; empty for the backend's `runtime`."""
    user: str = ""
    """User and group as numbers; empty for the backend's `user`."""
    read_only: bool = False
    """Whether only the workspace and /tmp are writable."""
    tmpfs: dict[str, str] = {}
    """Further tmpfs mounts, with their mount options."""
    mounts: tuple[Mount, ...] = ()
    workspace: Annotated[str, msgspec.Meta(pattern=r"^/[A-Za-z0-9_./-]+$")] = WORKSPACE
    """Where the volume with the sandbox's files is mounted."""
    host_labels: dict[str, str] = {}
    """Labels that the engine's entry in `hosts` must have."""
    shm_bytes: Annotated[int, msgspec.Meta(ge=65536)] = 256 * 1024 * 1024
    """Size of /dev/shm, which browsers need."""


class ImageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of an image."""

    id: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    env: tuple[str, ...] = ()
    tools: str = ""
    """The volume with the agent server, if the image itself has none."""
    labels: dict[str, str] = {}


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Network and addresses of a sandbox."""

    network: str
    """The name of the sandbox's network."""
    address: str
    """The sandbox's address there."""
    hosts: tuple[str, ...] = ()
    """Host entries as the engine takes them: `NAME:ADDRESS`."""
    is_calling: bool = False
    """Whether the sandbox can reach this server."""
    publish: str = ""
    """The address at which its ports are published; empty if they are not."""
    proxy_url: str = ""
    dns_address: str = ""
    """The address of the network's own DNS server on this machine; empty if it has none there."""
    guard: str = ""
    """`no`, or the comma-separated ports of the engine's machine that are open to the sandbox."""


def to_options(asked: Spec | Order) -> Options:
    """Return the options; raises OrderRejected for unknown or invalid ones."""
    try:
        return msgspec.convert(asked.options, Options)
    except msgspec.ValidationError as exc:
        raise OrderRejected(f"The options are invalid: {exc}") from exc


def to_image(inspected: Json) -> ImageInfo:
    """Return the relevant configuration of an inspected image."""
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
    """Return the base image with the agent server of another image, from a volume."""
    return msgspec.structs.replace(
        base, entrypoint=agent.entrypoint, command=agent.command, tools=tools
    )


def isolation_of(runtime: str) -> Isolation:
    """Return the isolation of containers of a runtime."""
    if _GVISOR.search(runtime):
        return Isolation.GVISOR
    return Isolation.VM if _VM.search(runtime) else Isolation.CONTAINER


def check(asked: Spec | Order, config: DockerConfig) -> None:
    """Raise OrderRejected for orders that can never be created."""
    options = to_options(asked)
    if not asked.image:
        raise OrderRejected("A docker sandbox needs an image")
    if isinstance(asked, Order):
        _check_order(asked)
    ports = choose_ports(asked.ports)
    for text in (*(asked.command or ()), *asked.env.values()):
        fill(text, ports)
    if options.user and not _NUMBERS.fullmatch(options.user):
        raise OrderRejected("The option `user` is a number, or two separated by a colon")
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
        raise OrderRejected(f"{mount.source} belongs to the engine and cannot be mounted")
    if not any(is_below(source, posixpath.normpath(one)) for one in allowed):
        raise OrderRejected(
            f"{mount.source} is not below one of the backend's `bind_mounts`; add it there"
        )


def user_of(image: ImageInfo, options: Options, config: DockerConfig) -> str:
    """Return the user a sandbox runs as: never root, unless it is configured."""
    if asked := options.user or config.user:
        return asked
    return f"{_OWNER}:{_OWNER}" if image.user.partition(":")[0] in ("", "0", "root") else image.user


def argv_of(order: Order, image: ImageInfo, ports: Mapping[str, int]) -> list[str]:
    """Return the command line; raises OrderRejected if neither order nor image has one."""
    command = image.command if order.command is None else order.command
    argv = [*image.entrypoint, *(fill(part, ports) for part in command)]
    if not argv:
        raise OrderRejected(f"The image `{order.image}` has no command, and the spec has none")
    return argv


def environment_of(order: Order, ports: Mapping[str, int], place: Placement) -> dict[str, str]:
    """Return the environment variables that are no secrets."""
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
    """Return the body of the request that creates a sandbox's container.

    `base` is the base image if `image` is a layer; without `has_volume` the working directory is in
    the container itself.
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
            # Always set, so that no label of the image shows through.
            names.BASE: base or image.id,
        },
        "ExposedPorts": {f"{number}/tcp": {} for number in ports.values()},
        "HostConfig": {
            **limits_of(order),
            **_hardened(options, has_init=has_init),
            **({"Runtime": runtime} if runtime else {}),
            # Podman gives every container an IPv6 address, by which it could reach the machine.
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
    """Return the host and port to which a sandbox sends its reports."""
    url = urlsplit(env.get(_CALLBACK_VARIABLE, ""))
    if not url.hostname:
        return None
    return url.hostname, url.port or (443 if url.scheme == "https" else 80)


def bindings(ports: Mapping[str, int], address: str) -> Json:
    """Return the port bindings at an address; the engine chooses the numbers."""
    if not address:
        return {}
    return {f"{number}/tcp": [{"HostIp": address, "HostPort": ""}] for number in ports.values()}


def limits_of(order: Order) -> Json:
    """Return the limits in the engine's terms; unset ones are omitted."""
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
    """Return the names of the limits that an order sets."""
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
    """Return whether the files must be in a volume rather than in the container.

    gVisor may keep changes of the container's files to itself, and lose them at a stop.
    """
    return is_read_only or isolation_of(runtime) is Isolation.GVISOR


def mounts(order: Order, options: Options, tools: str, *, has_volume: bool = True) -> list[Json]:
    """Return the mounts of volumes and of permitted directories of the engine's machine."""
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
    """Return the archive with the files for the entry script, readable inside for everyone.

    `fence` is the program that runs the command.
    """
    text = "".join(
        f"export {name}={shlex.quote(value.reveal())}\n" for name, value in secret_env.items()
    )
    return _archive([_file("env", text.encode(), 0o444), _file("fence.py", fence, 0o444)])


def checkpoint_archive(
    programs: Mapping[str, bytes], rollback: str, group: int, *, may_write: bool
) -> bytes:
    """Return the archive of the checkpoint programs and the checkpoint to restore, if any.

    Only the group may access the checkpoints, unless everyone `may_write`.
    """
    store, info = _directory("checkpoints", (0, group)), _file("rollback", rollback.encode(), 0o444)
    store[0].mode = 0o777 if may_write else 0o770
    return _archive([*_files(programs), info, store])


def workspace_archive(
    owner: tuple[int, int], directories: Iterable[str], *, top: str = "."
) -> bytes:
    """Return the archive that gives the workspace and directories in it to their user.

    `top` is the name of the workspace in the archive.
    """
    return _archive(_directory(name, owner) for name in (top, *directories))


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """Return an archive of files that everyone may read, with their directories."""
    return _archive(_files(files))


def parse_user(user: str, passwd: str = "") -> tuple[int, int] | None:
    """Return user and group id; a user name is looked up in the image's /etc/passwd."""
    name, _, group = user.partition(":")
    if name.isdecimal():
        return int(name), int(group) if group.isdecimal() else int(name)
    for line in passwd.splitlines():
        # The file comes from the image and may be malformed.
        parts = line.split(":")
        if parts[0] == name and [one.isdecimal() for one in parts[2:4]] == [True, True]:
            return int(parts[2]), int(parts[3])
    return None


def home_in(user: str, passwd: str) -> str:
    """Return the home of a user, by name or id, from an image's /etc/passwd; empty if unknown."""
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
    # Podman stops reading at the end marker, and fails if more data follows.
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
