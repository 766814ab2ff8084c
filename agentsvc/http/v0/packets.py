"""Packets of the Socket.IO protocol: what clients send is checked, what they get is JSON already.

A packet that no client of this server has a reason to send reads as a goodbye. What a client says
in an event is left as it came, for whoever knows its type.
"""

from typing import Any, Final

import msgspec
from engineio.packet import Packet as EngineIoPacket
from engineio.packet import packet_names
from engineio.payload import Payload
from socketio import packet

from agentsvc.base import BadRequest, has_many_values

EVENT: Final = "oh_event"
"""The name under which everything is sent."""

_RESERVED: Final = frozenset({"connect", "disconnect", "connect_error"})
_DEFAULT_NAMESPACES: Final = (None, "/")
_NO_PAYLOAD: Final = "The body is no payload of the Engine.IO protocol"


_text: Final = msgspec.json.Decoder(str)
_items: Final = msgspec.json.Decoder(list[msgspec.Raw])


class _Json:
    """What the protocol's packets are written and read with; the items of a list stay JSON."""

    @staticmethod
    def dumps(value: Any, **_options: Any) -> str:
        return msgspec.json.encode(value).decode()

    @staticmethod
    def loads(text: str) -> Any:
        if has_many_values(text.encode()):
            raise ValueError("these are too many values")
        try:
            return _items.decode(text) if text.startswith("[") else msgspec.json.decode(text)
        except msgspec.DecodeError as exc:
            raise ValueError("this is no JSON") from exc


# Engine.IO would read as JSON, by Python's own decoder, what no client of Socket.IO sends as that.
EngineIoPacket.json = _Json


class Packet(packet.Packet):  # type: ignore[misc]  # the package has no types
    """A packet in either direction."""

    json = _Json
    packet_type: int
    namespace: str | None
    id: int | None
    data: Any

    def __init__(self, *args: Any, encoded_packet: Any = None, **fields: Any) -> None:
        super().__init__(*args, **fields)
        if encoded_packet is not None and not self._read(encoded_packet):
            self.packet_type = packet.DISCONNECT
            self.namespace = self.id = self.data = None

    def _read(self, received: Any) -> bool:
        """Take in what was received; say whether it is a packet."""
        if not isinstance(received, str):
            return False
        try:
            attachments = self.decode(received)
            is_expected = self._check()
        except (ValueError, msgspec.DecodeError, RecursionError):
            return False
        return is_expected and not attachments and self.namespace in _DEFAULT_NAMESPACES

    def _check(self) -> bool:
        match self.packet_type:
            case packet.CONNECT:
                return self.data is None or isinstance(self.data, dict)
            case packet.DISCONNECT:
                return True
            case packet.EVENT if isinstance(self.data, list) and self.data:
                name = _text.decode(self.data[0])
                self.data = [name, *self.data[1:]]
                return name not in _RESERVED
            case _:
                return False


def event_packet(frame: bytes) -> str:
    """Return a frame as the text of a packet."""
    text: str = Packet(packet.EVENT, data=[EVENT, msgspec.Raw(frame)]).encode()
    return text


def check_payload(body: bytes) -> None:
    """Raise BadRequest unless the body of a polling client is made of packets."""
    try:
        found = Payload(encoded_payload=body.decode()).packets
    except (ValueError, LookupError, RecursionError) as exc:
        raise BadRequest(_NO_PAYLOAD) from exc
    if not all(one.packet_type < len(packet_names) for one in found):
        raise BadRequest(_NO_PAYLOAD)
