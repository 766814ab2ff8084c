"""Says where the services of a cluster are, as its DNS does; of other names it says that none are.

Each question is asked of the API server, so that nothing it says is old.
"""

import http.client
import ipaddress
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final

from tests.live.kube.api import Api, Refused

DOMAIN: Final = "cluster.local"
PORT: Final = 53

_A: Final = 1
_ANSWER: Final = 0x8180
_NO_ANSWER: Final = 2
_NO_SUCH_NAME: Final = 3
_LIFE_SECONDS: Final = 5
_HEAD: Final = struct.Struct(">HHHHHH")
_LABEL_MAX: Final = 63

type Find = Callable[[str, str], str | None]


def serve(api: Api, address: str, ended: threading.Event) -> None:
    """Answer at an address until told to end."""

    def find(name: str, namespace: str) -> str | None:
        found = api.find(f"/api/v1/namespaces/{namespace}/services/{name}")
        return None if found is None else str(found["spec"].get("clusterIP"))

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.bind((address, PORT))
        asked.settimeout(0.3)
        while not ended.is_set():
            try:
                question, client = asked.recvfrom(4096)
            except TimeoutError:
                continue
            if said := answer_to(question, find):
                asked.sendto(said, client)


def answer_to(question: bytes, find: Find) -> bytes:
    """Return the answer to a question, or nothing if it is none; `find` knows services."""
    try:
        number, _, count, *_ = _HEAD.unpack_from(question)
        labels, end = _labels(question)
        kind, _ = struct.unpack_from(">HH", question, end)
    except (struct.error, IndexError, UnicodeDecodeError):
        return b""
    if count != 1:
        return b""
    address, failure = _look_up(labels, find)
    records = b""
    if address is not None and kind == _A:
        place = ipaddress.IPv4Address(address).packed
        # The name is the one that was asked for, which begins behind the head.
        records = struct.pack(">HHHIH", 0xC00C, _A, 1, _LIFE_SECONDS, len(place)) + place
    head = _HEAD.pack(number, _ANSWER | failure, 1, int(bool(records)), 0, 0)
    return head + question[_HEAD.size : end + 4] + records


def _look_up(labels: list[str], find: Find) -> tuple[str | None, int]:
    match labels:
        case [name, namespace, "svc", "cluster", "local"]:
            try:
                found = find(name, namespace)
            except (OSError, http.client.HTTPException, Refused):
                return None, _NO_ANSWER
            return found, 0 if found else _NO_SUCH_NAME
        case _:
            return None, _NO_SUCH_NAME


def _labels(question: bytes) -> tuple[list[str], int]:
    labels, at = [], _HEAD.size
    while (size := question[at]) and size <= _LABEL_MAX:
        labels.append(question[at + 1 : at + 1 + size].decode("ascii").lower())
        at += 1 + size
    return labels, at + 1
