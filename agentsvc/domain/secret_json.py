"""JSON with the values of secrets in it: for what is sealed before it is stored, and nothing else. Pure."""

from typing import Final

import msgspec

from agentsvc.base import Secret

_ENCODER: Final = msgspec.json.Encoder(enc_hook=Secret.reveal)


def encode_revealed(record: msgspec.Struct) -> bytes:
    """Return a record as JSON, its secrets revealed."""
    return _ENCODER.encode(record)


def revealed_decoder[T](kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return what reads the JSON of `encode_revealed` again."""
    return msgspec.json.Decoder(kind, dec_hook=_to_secret)


def _to_secret(kind: type, value: object) -> Secret:
    if kind is not Secret or not isinstance(value, str):
        raise NotImplementedError(kind)
    return Secret(value)
