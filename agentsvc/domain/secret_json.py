"""JSON with revealed secrets, only for values that are sealed before they are stored. Pure."""

from typing import Final

import msgspec

from agentsvc.base import Secret

_ENCODER: Final = msgspec.json.Encoder(enc_hook=Secret.reveal)


def encode_revealed(record: msgspec.Struct) -> bytes:
    """Encode a record as JSON, with its secrets revealed."""
    return _ENCODER.encode(record)


def revealed_decoder[T](kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return a decoder for the JSON of `encode_revealed`."""
    return msgspec.json.Decoder(kind, dec_hook=_to_secret)


def _to_secret(kind: type, value: object) -> Secret:
    if kind is not Secret or not isinstance(value, str):
        raise NotImplementedError(kind)
    return Secret(value)
