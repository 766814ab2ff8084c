"""The restricted Pod Security Standard, as its text has it: what a pod may not be."""

from collections.abc import Iterator
from typing import Any

type Json = dict[str, Any]

_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_PROFILES = ("RuntimeDefault", "Localhost")
_SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
}


def breaches(pod: Json) -> list[str]:
    """Name what a pod breaks of the standard."""
    return [*_of_pod(pod["spec"]), *_of_containers(pod["spec"])]


def _of_pod(spec: Json) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield name
    for volume in spec.get("volumes") or ():
        kinds = set(volume) - {"name"}
        if len(kinds) != 1 or not kinds <= _VOLUMES:
            yield f"volume {volume['name']}: {kinds}"
    context = spec.get("securityContext") or {}
    if context.get("runAsUser") == 0:
        yield "runAsUser 0"
    if {one["name"] for one in context.get("sysctls") or ()} - _SYSCTLS:
        yield "sysctls"
    if "windowsOptions" in context:
        yield "windowsOptions"


def _of_containers(spec: Json) -> Iterator[str]:
    general = spec.get("securityContext") or {}
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(kind) or ():
            own = container.get("securityContext") or {}
            yield from (
                f"{container['name']}: {one}" for one in _of_container(container, own, general)
            )


def _of_container(container: Json, own: Json, general: Json) -> Iterator[str]:
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if own.get("runAsNonRoot", general.get("runAsNonRoot")) is not True:
        yield "runAsNonRoot"
    if own.get("runAsUser") == 0:
        yield "runAsUser 0"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or ()):
        yield "capabilities are not dropped"
    if set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
        yield "capabilities are added"
    profile = own.get("seccompProfile", general.get("seccompProfile")) or {}
    if profile.get("type") not in _PROFILES:
        yield "seccompProfile"
    if own.get("procMount", "Default") != "Default":
        yield "procMount"
    if any(port.get("hostPort") for port in container.get("ports") or ()):
        yield "hostPort"
