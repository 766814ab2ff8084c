"""Packets of the Socket.IO protocol: validates received ones, encodes frames for sending.

A packet that clients of this server have no reason to send is read as a disconnect. The arguments
of an event stay JSON; the module that knows their type decodes them.
"""

from typing import Any, Final

import msgspec
from engineio.packet import Packet as EngineIoPacket
from engineio.packet import packet_names
from engineio.payload import Payload
from socketio import packet

from agentsvc.base import BadRequest, exceeds_value_limit

EVENT: Final = "oh_event"
"""The name of all Socket.IO events that the server sends."""

_RESERVED: Final = frozenset({"connect", "disconnect", "connect_error"})
_DEFAULT_NAMESPACES: Final = (None, "/")
_NO_PAYLOAD: Final = "The body is not a payload of the Engine.IO protocol"


_text: Final = msgspec.json.Decoder(str)
_items: Final = msgspec.json.Decoder(list[msgspec.Raw])


class _Json:
    """JSON codec of packets; the items of a decoded list stay JSON."""

    @staticmethod
    def dumps(value: Any, **_options: Any) -> str:
        return msgspec.json.encode(value).decode()

    @staticmethod
    def loads(text: str) -> Any:
        if exceeds_value_limit(text.encode()):
            raise ValueError("the packet has too many values")
        try:
            return _items.decode(text) if text.startswith("[") else msgspec.json.decode(text)
        except msgspec.DecodeError as exc:
            raise ValueError("the packet is not JSON") from exc


# Engine.IO tries to decode packet data as JSON with Python's decoder; Socket.IO clients send none.
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
        """Decode a received packet; return whether it is valid and expected."""
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
    """Encode a frame as the text of a Socket.IO event packet."""
    text: str = Packet(packet.EVENT, data=[EVENT, msgspec.Raw(frame)]).encode()
    return text


def check_payload(body: bytes) -> None:
    """Raise BadRequest unless the body of a polling client consists of valid packets."""
    try:
        found = Payload(encoded_payload=body.decode()).packets
    except (ValueError, LookupError, RecursionError) as exc:
        raise BadRequest(_NO_PAYLOAD) from exc
    if not all(one.packet_type < len(packet_names) for one in found):
        raise BadRequest(_NO_PAYLOAD)
