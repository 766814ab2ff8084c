"""What a cluster consists of: its places, addresses and commands. Nothing is started here."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from tests.live.kube.build import PAUSE
from tests.live.kube.dns import DOMAIN

API_PORT: Final = 6443
PAUSE_IMAGE: Final = "tests/pause:1"
ISSUER: Final = "https://kubernetes.default.svc"

_ETCD: Final = "http://127.0.0.1:2379"
_SERVICE_ADDRESSES: Final = "10.96.0.0/16"
API_SERVICE: Final = "10.96.0.1"
"""Where pods find the API server."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster; it is written to its directory, where those who use it read it."""

    directory: str
    programs: str
    second: int
    """Its addresses are 10.SECOND.x.y."""
    nodes: int
    admin: str
    """The token of a user who may do everything."""
    stranger: str
    """The token of a user, `stranger`, who may do nothing."""

    @classmethod
    def of(cls, directory: Path) -> Self:
        """Return the plan that a directory has."""
        return msgspec.json.decode((directory / "plan.json").read_bytes(), type=cls)

    def save(self) -> None:
        (self.place / "plan.json").write_bytes(msgspec.json.encode(self))

    @property
    def place(self) -> Path:
        return Path(self.directory)

    # Addresses

    @property
    def machine(self) -> str:
        """Where pods find this machine."""
        return f"10.{self.second}.255.1"

    @property
    def gate(self) -> str:
        """Where this machine finds the cluster's networks."""
        return f"10.{self.second}.255.2"

    @property
    def control(self) -> str:
        """Where the API server is."""
        return f"10.{self.second}.0.1"

    @property
    def all_addresses(self) -> str:
        return f"10.{self.second}.0.0/16"

    @property
    def link(self) -> str:
        """What the way to the cluster is called on this machine."""
        return f"tkube{self.second}"

    @property
    def group(self) -> str:
        """What the control groups of its pods are below."""
        return f"agentsvc-tests-kube{self.second}"

    def node_address(self, number: int) -> str:
        return f"10.{self.second}.0.{10 + number}"

    def pod_network(self, number: int) -> str:
        return f"10.{self.second}.{100 + number}"

    @property
    def url(self) -> str:
        return f"https://{self.control}:{API_PORT}"

    # Files

    @property
    def authority(self) -> Path:
        """The certificate that the API server's is signed with."""
        return self.place / "tls/server/ca.pem"

    @property
    def kubeconfig(self) -> Path:
        return self.place / "admin.kubeconfig"

    @property
    def volumes(self) -> Path:
        return self.place / "volumes"

    def node(self, number: int) -> Path:
        return self.place / f"n{number}"

    def engine(self, number: int) -> Path:
        """Return the socket of a node's engine."""
        return self.node(number) / "docker.sock"

    def log(self, name: str) -> Path:
        return self.place / f"{name}.log"

    def held(self, name: str) -> Path:
        """Return the file that keeps a service from being started again while it exists."""
        return self.place / f"{name}.held"

    def pid(self, name: str) -> Path:
        """Return the file with the process id of a service, as the cluster itself counts."""
        return self.place / f"{name}.pid"

    # Commands

    def control_services(self) -> Mapping[str, Sequence[str]]:
        """Return what runs beside the API server, in the order of starting."""
        config = f"--kubeconfig={self.kubeconfig}"
        return {
            "scheduler": (
                *(f"{self.programs}/kube-scheduler", config, "--leader-elect=false", "--port=0"),
            ),
            "controllers": (
                *(f"{self.programs}/kube-controller-manager", config, "--leader-elect=false"),
                *("--port=0", f"--service-account-private-key-file={self.place}/accounts.pem"),
                f"--root-ca-file={self.authority}",
                # How long a node may be silent until it counts as lost.
                "--node-monitor-grace-period=10s",
            ),
        }

    def etcd(self) -> Sequence[str]:
        return (
            *("etcd", "--data-dir", f"{self.place}/etcd", "--unsafe-no-fsync"),
            *("--listen-client-urls", _ETCD, "--advertise-client-urls", _ETCD),
            *("--listen-peer-urls", "http://127.0.0.1:2380"),
            *("--initial-advertise-peer-urls", "http://127.0.0.1:2380"),
            *("--initial-cluster", "default=http://127.0.0.1:2380"),
        )

    def api_server(self) -> Sequence[str]:
        keys = self.place / "tls/server"
        return (
            *(f"{self.programs}/kube-apiserver", f"--etcd-servers={_ETCD}"),
            *(f"--bind-address={self.control}", f"--advertise-address={self.control}"),
            *(f"--secure-port={API_PORT}", "--insecure-port=0"),
            *(f"--tls-cert-file={keys}/cert.pem", f"--tls-private-key-file={keys}/key.pem"),
            f"--service-cluster-ip-range={_SERVICE_ADDRESSES}",
            *(f"--token-auth-file={self.place}/tokens.csv", "--authorization-mode=RBAC"),
            *(f"--service-account-issuer={ISSUER}", f"--cert-dir={self.place}/certs"),
            f"--service-account-signing-key-file={self.place}/accounts.pem",
            f"--service-account-key-file={self.place}/accounts.pem",
            *("--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP"),
        )

    def engine_command(self, number: int) -> Sequence[str]:
        """Return a node's engine; nothing is translated, all addresses are routed."""
        place = self.node(number)
        return (
            *("dockerd", "--host", f"unix://{self.engine(number)}"),
            *("--pidfile", f"{place}/dockerd.pid"),
            *("--data-root", f"{place}/root", "--exec-root", f"{place}/exec"),
            *("--bip", f"{self.pod_network(number)}.1/24", "--iptables=false"),
            *("--cgroup-parent", f"/{self.group}"),
            *("--add-runtime", f"plain={self.place}/plain-runc", "--default-runtime", "plain"),
        )

    def kubelet(self, number: int) -> Sequence[str]:
        place = self.node(number)
        return (
            *(f"{self.programs}/kubelet", f"--kubeconfig={self.kubeconfig}"),
            *(f"--hostname-override=node{number}", f"--node-ip={self.node_address(number)}"),
            f"--container-runtime-endpoint=unix://{place}/shim.sock",
            # One is for making containers, the other for measuring them.
            *(f"--{name}=unix://{self.engine(number)}" for name in ("docker-endpoint", "docker")),
            f"--experimental-dockershim-root-directory={place}/shim",
            f"--pod-infra-container-image={PAUSE_IMAGE}",
            *(f"--root-dir={place}/kubelet", f"--cert-dir={place}/certs"),
            f"--resolv-conf={self.place}/resolv.conf",
            *(f"--cluster-dns={self.control}", f"--cluster-domain={DOMAIN}"),
            *("--fail-swap-on=false", "--eviction-hard=", "--image-gc-high-threshold=100"),
            *("--cgroup-driver=cgroupfs", "--cgroups-per-qos=false"),
            "--enforce-node-allocatable=",
            *("--anonymous-auth=true", "--authorization-mode=AlwaysAllow"),
            *("--read-only-port=0", "--healthz-port=0", "--node-status-update-frequency=3s"),
        )

    def proxy(self, number: int) -> Sequence[str]:
        """Return what leads from the addresses of services to pods; it leaves limits alone."""
        return (
            *(f"{self.programs}/kube-proxy", f"--kubeconfig={self.kubeconfig}"),
            *(f"--hostname-override=node{number}", "--proxy-mode=iptables"),
            *("--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s"),
            *("--conntrack-tcp-timeout-close-wait=0s", "--iptables-min-sync-period=200ms"),
            *("--healthz-bind-address=", "--metrics-bind-address=127.0.0.1:10249"),
        )

    def kubeconfig_of(self, token: str) -> dict[str, Any]:
        """Return what tells a client how to be a user here."""
        cluster = {"server": self.url, "certificate-authority": str(self.authority)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "user"}}],
            "current-context": "tests",
        }

    def write_files(self) -> None:
        """Write what the commands read, but for keys."""
        self.volumes.mkdir(exist_ok=True)
        self.volumes.chmod(0o755)
        self.kubeconfig.write_text(json.dumps(self.kubeconfig_of(self.admin)))
        (self.place / "tokens.csv").write_text(
            f"{self.admin},admin,admin,system:masters\n{self.stranger},stranger,stranger\n"
        )
        (self.place / "resolv.conf").write_text(f"nameserver {self.control}\n")
        runtime = self.place / "plain-runc"
        runtime.write_text(_RUNTIME)
        runtime.chmod(0o755)

    @property
    def pause_program(self) -> Path:
        return Path(self.programs) / PAUSE


# The engine asks for a lower score than root without CAP_SYS_RESOURCE may give.
_RUNTIME: Final = """\
#!/bin/sh
next=
for word in "$@"; do
    if [ "$next" ] && [ -f "$word/config.json" ]; then
        sed -i -E 's/("oomScoreAdj":)-[0-9]+/\\10/' "$word/config.json"
    fi
    next=
    [ "$word" != --bundle ] || next=yes
done
exec runc "$@"
"""
