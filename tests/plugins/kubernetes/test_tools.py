"""What the cluster of the live tests makes of policies and of questions for names."""

import struct
from typing import Any

import pytest

from tests.live.kube import dns, fences

type Json = dict[str, Any]

SPACES = [{"metadata": {"name": name, "labels": {"name": name}}} for name in ("one", "two")]


def pod(name: str, namespace: str, address: str, node: str = "node1", **status: str) -> Json:
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": {"name": name}},
        "spec": {"nodeName": node},
        "status": {"podIP": address, "phase": "Running", **status},
    }


def policy(chosen: Json, **spec: Any) -> Json:
    kinds = [kind.capitalize() for kind in ("ingress", "egress") if kind in spec]
    return {
        "metadata": {"name": "p", "namespace": "one"},
        "spec": {"podSelector": chosen, "policyTypes": kinds, **spec},
    }


PODS = [
    pod("a", "one", "10.1.1.1"),
    pod("b", "one", "10.1.1.2"),
    pod("c", "two", "10.1.2.3", "node2"),
    pod("over", "one", "10.1.1.9", phase="Failed"),
]
A: Json = {"matchLabels": {"name": "a"}}
B: Json = {"matchLabels": {"name": "b"}}


def rules(*policies: Json, node: str = "node1") -> list[str]:
    text = fences.rules(node, PODS, policies, SPACES)
    return [line for line in text.splitlines() if line.startswith("-A")][1:]


def test_a_pod_that_no_policy_chooses_is_free() -> None:
    assert rules() == []
    assert rules(policy(A, ingress=[]), node="node2") == []


def test_who_is_chosen_gets_what_is_allowed_and_nothing_else() -> None:
    everybody = policy({}, ingress=[])
    opened = policy(
        A,
        ingress=[
            {"from": [{"podSelector": B}], "ports": [{"protocol": "TCP", "port": 8000}]},
            {"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"name": "c"}}}]},
        ],
    )
    assert rules(everybody, opened) == [
        "-A POLICIES -d 10.1.1.1 -j ingress-10.1.1.1",
        "-A POLICIES -d 10.1.1.2 -j ingress-10.1.1.2",
        "-A ingress-10.1.1.1 -s 10.1.1.2/32 -p tcp --dport 8000 -j RETURN",
        "-A ingress-10.1.1.1 -s 10.1.2.3/32 -j RETURN",
        "-A ingress-10.1.1.1 -j DROP",
        "-A ingress-10.1.1.2 -j DROP",
    ]


def test_addresses_are_let_through_but_for_those_excepted() -> None:
    block = {"cidr": "10.0.0.0/30", "except": ["10.0.0.1/32", "192.0.2.0/24"]}
    told = policy(A, egress=[{"to": [{"ipBlock": block}, {"ipBlock": {"cidr": "::/0"}}]}])
    assert rules(told) == [
        "-A POLICIES -s 10.1.1.1 -j egress-10.1.1.1",
        "-A egress-10.1.1.1 -d 10.0.0.0/32 -j RETURN",
        "-A egress-10.1.1.1 -d 10.0.0.2/31 -j RETURN",
        "-A egress-10.1.1.1 -j DROP",
    ]
    [_, *found] = rules(policy(A, egress=[{}]))
    assert found[0] == "-A egress-10.1.1.1 -d 0.0.0.0/0 -j RETURN"


def test_what_is_not_known_of_policies_is_said() -> None:
    with pytest.raises(NotImplementedError, match="matchExpressions"):
        rules(policy({"matchExpressions": []}, ingress=[]))


def question(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes((len(part),)) + part.encode() for part in name.split("."))
    return struct.pack(">HHHHHH", 77, 0x0100, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, kind, 1)


def find(name: str, namespace: str) -> str | None:
    if namespace == "away":
        raise OSError
    return "10.96.0.7" if (name, namespace) == ("web", "one") else None


@pytest.mark.parametrize(
    ("name", "kind", "failure", "end"),
    [
        ("web.one.svc.cluster.local", 1, 0, b"\x00\x04\x0a\x60\x00\x07"),
        ("WEB.one.svc.cluster.local", 28, 0, b""),
        ("mail.one.svc.cluster.local", 1, 3, b""),
        ("web.away.svc.cluster.local", 1, 2, b""),
        ("example.org", 1, 3, b""),
    ],
)
def test_names_of_services_are_known_and_no_others(
    name: str, kind: int, failure: int, end: bytes
) -> None:
    asked = question(name, kind)
    said = dns.answer_to(asked, find)
    number, flags, asks, answers, *_ = struct.unpack_from(">HHHHHH", said)
    assert (number, flags & 15, asks, answers) == (77, failure, 1, 1 if end else 0)
    assert said[12 : len(asked)] == asked[12:]
    assert said[len(asked) :].endswith(end)


@pytest.mark.parametrize("asked", [b"", b"\x00" * 11, question("web.one")[:14], b"\xff" * 40])
def test_what_is_no_question_is_not_answered(asked: bytes) -> None:
    assert dns.answer_to(asked, find) == b""
