"""Holds pods to the NetworkPolicy objects of a cluster, as its network does: by the kernels' rules.

Each node has rules for its own pods, for what is sent to them as for what they send. What a policy
says of labels other than by `matchLabels`, and of addresses of IPv6, is not known here.
"""

import http.client
import ipaddress
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tests.live.kube.api import Api, Refused

_CHAIN: Final = "POLICIES"
_PAUSE_SECONDS: Final = 0.3
_ENDED: Final = ("Succeeded", "Failed")
_EVERYWHERE: Final = "0.0.0.0/0"
_KINDS: Final = (
    "/api/v1/pods",
    "/apis/networking.k8s.io/v1/networkpolicies",
    "/api/v1/namespaces",
)
_DIRECTIONS: Final = (
    ("Egress", "egress", "to", "-s", "-d"),
    ("Ingress", "ingress", "from", "-d", "-s"),
)

type Json = dict[str, Any]

BEGIN: Final = f"*mangle\n:{_CHAIN} - [0:0]\n-A FORWARD -j {_CHAIN}\nCOMMIT\n"
"""What a node begins with, in a table that those who carry services to pods do not use."""


def serve(api: Api, nodes: Mapping[str, Sequence[str]], ended: threading.Event) -> None:
    """Keep each node's rules as the API has it; `nodes` are what enters them."""
    known: dict[str, str] = {}
    while not ended.wait(_PAUSE_SECONDS):
        try:
            pods, policies, namespaces = (api.items(path) for path in _KINDS)
        except (OSError, http.client.HTTPException, Refused):
            continue
        for node, enter in list(nodes.items()):
            text = rules(node, pods, policies, namespaces)
            if text != known.get(node):
                load(enter, text)
                known[node] = text


def load(enter: Sequence[str], text: str) -> None:
    """Put rules into a node."""
    command = [*enter, "iptables-restore", "--wait", "10", "--noflush"]
    subprocess.run(command, input=text, text=True, check=True, capture_output=True)


def rules(
    node: str, pods: Sequence[Json], policies: Sequence[Json], namespaces: Sequence[Json]
) -> str:
    """Return what a node holds its pods to."""
    cluster = _Cluster(pods, namespaces)
    chains, lines = [], ["-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"]
    found: list[str] = []
    for pod in cluster.pods:
        if pod["spec"].get("nodeName") != node:
            continue
        for kind, key, whom, own, other in _DIRECTIONS:
            chosen = [one for one in policies if _is_for(one, kind, pod)]
            if not chosen:
                continue
            address = pod["status"]["podIP"]
            chain = f"{key}-{address}"
            chains.append(chain)
            lines.append(f"{own} {address} -j {chain}")
            for policy in chosen:
                found += [
                    f"-A {chain} {words} -j RETURN"
                    for rule in policy["spec"].get(key) or ()
                    for words in cluster.allowed(rule, whom, other, policy)
                ]
            found.append(f"-A {chain} -j DROP")
    begun = [f":{name} - [0:0]" for name in (_CHAIN, *chains)]
    listed = [f"-A {_CHAIN} {line}" for line in lines]
    return "\n".join(["*mangle", *begun, *listed, *found, "COMMIT", ""])


class _Cluster:
    """Which pods there are, and who is meant by a policy."""

    def __init__(self, pods: Sequence[Json], namespaces: Sequence[Json]) -> None:
        self.pods = [
            pod
            for pod in pods
            if pod["status"].get("podIP")
            and pod["status"].get("phase") not in _ENDED
            and not pod["spec"].get("hostNetwork")
        ]
        self._namespaces = {one["metadata"]["name"]: one for one in namespaces}

    def allowed(self, rule: Json, whom: str, other: str, policy: Json) -> Iterator[str]:
        """Give what a rule lets through, in words of the kernel's."""
        ports = [_port(one) for one in rule.get("ports") or ()] or [""]
        for peer in rule.get(whom) or ({"ipBlock": {"cidr": _EVERYWHERE}},):
            for place in self._places(peer, policy["metadata"]["namespace"]):
                for port in ports:
                    yield f"{other} {place} {port}".strip()

    def _places(self, peer: Json, namespace: str) -> list[str]:
        if block := peer.get("ipBlock"):
            return _without(block["cidr"], block.get("except") or ())
        chosen = peer.get("namespaceSelector")
        names = (
            {namespace}
            if chosen is None
            else {name for name, one in self._namespaces.items() if _fits(chosen, one)}
        )
        return [
            f"{pod['status']['podIP']}/32"
            for pod in self.pods
            if pod["metadata"]["namespace"] in names and _fits(peer.get("podSelector") or {}, pod)
        ]


def _is_for(policy: Json, kind: str, pod: Json) -> bool:
    spec = policy["spec"]
    is_near = policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
    return is_near and kind in spec["policyTypes"] and _fits(spec["podSelector"], pod)


def _fits(selector: Json, thing: Json) -> bool:
    if unknown := set(selector) - {"matchLabels"}:
        raise NotImplementedError(f"a policy chooses by {unknown}")
    labels = thing["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())


def _port(told: Json) -> str:
    protocol = str(told.get("protocol", "TCP")).lower()
    return f"-p {protocol} --dport {int(told['port'])}"


def _without(cidr: str, excepted: Sequence[str]) -> list[str]:
    whole = ipaddress.ip_network(cidr)
    if not isinstance(whole, ipaddress.IPv4Network):
        return []
    left = [whole]
    for text in excepted:
        hole = ipaddress.IPv4Network(text)
        left = [part for one in left for part in _around(one, hole)]
    return sorted(str(one) for one in left)


def _around(
    whole: ipaddress.IPv4Network, hole: ipaddress.IPv4Network
) -> Iterator[ipaddress.IPv4Network]:
    if not whole.overlaps(hole):
        yield whole
    elif hole.subnet_of(whole):
        yield from whole.address_exclude(hole)
