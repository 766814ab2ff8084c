"""Wire structs of messages in V1: texts and images."""

from enum import StrEnum
from typing import Annotated, Any, Final, Literal, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from agentsvc.base import InvalidRequest, Problems, stated, with_check
from agentsvc.domain import Content, ContentKind, Message
from agentsvc.http.routes import shown_as
from agentsvc.http.wire import ImageUrl, decode, encode

type Location = tuple[str | int, ...]

_CONTENT_MAX: Final = 1000
_IMAGES_MAX: Final = 100


class Role(StrEnum):
    """Role of the author of a message."""

    USER = "user"
    SYSTEM = "system"
    ASSISTANT = "assistant"
    TOOL = "tool"


class _Part(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Fields common to all parts of a message."""

    cache_prompt: bool = False


class TextContent(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="text"):
    """A text. Unknown fields are refused, as in the API description published by OpenHands."""

    text: str
    """The text; front ends may render it as Markdown"""


class ImageContent(_Part, frozen=True, kw_only=True, tag="image"):
    """Images, by http(s) or data URL."""

    image_urls: Annotated[list[ImageUrl], msgspec.Meta(max_length=_IMAGES_MAX)]
    """The images, by http(s) or data URL"""


class OneUrl(msgspec.Struct, frozen=True, kw_only=True):
    """The URL of an image in the `image_url` form."""

    url: ImageUrl
    """http(s) or data URL of the image"""


class ImageUrlContent(_Part, frozen=True, kw_only=True, tag="image_url"):
    """An image in the form of chat completions, which one front end sends."""

    image_url: OneUrl
    """The image"""


type MessagePart = TextContent | ImageContent | ImageUrlContent
type RawPart = Annotated[msgspec.Raw, shown_as(MessagePart), with_check(_check_part)]
"""One part of a message, decoded separately so that an error can name the part."""
NOT_EMPTY: Final = stated(
    contains={
        "anyOf": [
            {"properties": {"type": {"const": "text"}, "text": {"pattern": r"\S"}}},
            {"properties": {"type": {"const": "image"}, "image_urls": {"minItems": 1}}},
            {"properties": {"type": {"const": "image_url"}}},
        ]
    }
)
"""Schema constraint: at least one part is an image or a non-empty text."""


class _Kind(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that determine the kind of a part; `type` may be omitted."""

    type: Literal["text", "image", "image_url"] | UnsetType = UNSET
    image_urls: msgspec.Raw | UnsetType = UNSET
    image_url: msgspec.Raw | UnsetType = UNSET


class MessageBody(msgspec.Struct, frozen=True, kw_only=True):
    """The first message of a conversation."""

    role: Role = Role.USER
    """Role of the author; the agent accepts only a first message of the user"""
    content: Annotated[list[RawPart], msgspec.Meta(max_length=_CONTENT_MAX), NOT_EMPTY]
    """The parts of the message, at most 1000; at least one is an image or a non-empty text"""
    run: bool = False
    """Accepted without effect: the first message always starts the agent"""


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """The first message in a response."""

    role: Role
    """Role of the author"""
    content: list[TextContent | ImageContent]
    """The parts of the message"""
    run: bool = False
    """Always false"""


_KIND = msgspec.json.Decoder(_Kind)
_TEXT = msgspec.json.Decoder(TextContent)
_IMAGE = msgspec.json.Decoder(ImageContent)
_IMAGE_URL = msgspec.json.Decoder(ImageUrlContent)


def to_message(role: str, content: list[msgspec.Raw], *, loc: Location) -> Message:
    """Convert a message to the domain; raises InvalidRequest that names the invalid parts."""
    problems = Problems()
    parts: list[Content] = []
    for i, raw in enumerate(content):
        with problems.noted():
            parts.append(to_content(raw, loc=(*loc, "content", i)))
    problems.refuse()
    return Message(role=role, content=tuple(parts))


def to_nonempty_message(role: str, content: list[msgspec.Raw], *, loc: Location) -> Message:
    """Convert a message to the domain; raises InvalidRequest also for an empty message."""
    message = to_message(role, content, loc=loc)
    if message.is_empty:
        raise InvalidRequest(
            "The message is empty: it needs a text or an image",
            loc=(*loc, "content"),
            kind="too_short",
        )
    return message


def to_content(raw: msgspec.Raw, *, loc: Location) -> Content:
    """Convert one part of a message to the domain; raises InvalidRequest."""
    match _kind_of(decode(raw, _KIND, loc=loc)):
        case "text":
            text = decode(raw, _TEXT, loc=loc)
            return Content(kind=ContentKind.TEXT, text=text.text, cache_prompt=text.cache_prompt)
        case "image":
            image = decode(raw, _IMAGE, loc=loc)
            urls, is_cached = tuple(image.image_urls), image.cache_prompt
        case "image_url":
            one = decode(raw, _IMAGE_URL, loc=loc)
            urls, is_cached = (one.image_url.url,), one.cache_prompt
        case never:
            assert_never(never)
    return Content(kind=ContentKind.IMAGE, image_urls=urls, cache_prompt=is_cached)


def _check_part(part: Any, *, loc: Location) -> None:
    to_content(msgspec.Raw(encode(part)), loc=loc)


def from_message(message: Message) -> MessageView:
    """Convert a message to its wire struct."""
    return MessageView(role=Role(message.role), content=[_from_content(c) for c in message.content])


def _from_content(content: Content) -> TextContent | ImageContent:
    match content.kind:
        case ContentKind.TEXT:
            return TextContent(text=content.text, cache_prompt=content.cache_prompt)
        case ContentKind.IMAGE:
            urls = list(content.image_urls)
            return ImageContent(image_urls=urls, cache_prompt=content.cache_prompt)


def _kind_of(kind: _Kind) -> Literal["text", "image", "image_url"]:
    if kind.type is not UNSET:
        return kind.type
    if kind.image_urls is not UNSET:
        return "image"
    return "text" if kind.image_url is UNSET else "image_url"
