"""What decides about webhooks: targets, signatures, how long to wait."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest

from agentsvc.base.errors import InvalidRequest, NotAllowed
from agentsvc.base.values import Secret
from agentsvc.extension.signatures import new_secret
from tests.plugin_loading import part

if TYPE_CHECKING:
    from webhooks.config import WebhooksConfig
    from webhooks.delivery_worker import after_try, back_off, may_send
    from webhooks.model import Delivery, DeliveryState, Subscription
    from webhooks.sender import DeliveryResult, wait_seconds
    from webhooks.signing import sign
    from webhooks.targets import check_url
else:
    after_try = part("webhooks.delivery_worker").after_try
    back_off = part("webhooks.delivery_worker").back_off
    may_send = part("webhooks.delivery_worker").may_send
    Delivery = part("webhooks.model").Delivery
    DeliveryState = part("webhooks.model").DeliveryState
    Subscription = part("webhooks.model").Subscription
    DeliveryResult = part("webhooks.sender").DeliveryResult
    wait_seconds = part("webhooks.sender").wait_seconds
    WebhooksConfig = part("webhooks.config").WebhooksConfig
    sign = part("webhooks.signing").sign
    check_url = part("webhooks.targets").check_url

NOW = datetime(2030, 1, 1, tzinfo=UTC)
CONFIG = WebhooksConfig(first_retry_seconds=2, longest_retry_seconds=60, give_up_seconds=100)
DELIVERY = Delivery(
    number=1,
    id="d" * 32,
    subscription_id="s" * 32,
    lane="c" * 32,
    type="conversation.event",
    seq=0,
    data=None,
    state=DeliveryState.PENDING,
    attempts=0,
    status=None,
    reason="",
    created_at=NOW,
    begun_at=NOW,
    due_at=NOW,
    settled_at=None,
)
FAILED = DeliveryResult(is_delivered=False, status=500, reason="the receiver answered 500")


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/hook",
        "http://example.com:8080/a?b=c",
        "https://93.184.216.34/",
        "https://[2606:2800:220:1::1]:443/hook",
        "https://xn--bcher-kva.example/hook",
    ],
)
def test_a_url_of_the_internet_may_be_registered(url: str) -> None:
    check_url(url, allows_private=False)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost/",
        "http://a.localhost./",
        "http://127.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://0/",
        "http://10.1.2.3/",
        "http://169.254.169.254/latest",
        "http://192.168.0.1/",
        "http://100.64.0.1/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
        "http://[::1]/",
        "http://[fe80::1]/",
        "http://[fd00::1]/",
        "http://[ff02::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[::127.0.0.1]/",
        "http://[::]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[64:ff9b::10.0.0.1]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[2002:a00:1::1]/",
        "http://[2002:c0a8:101::]/",
        "http://[2001:0:7f00:1::]/",
        "http://[fec0::1]/",
        "http://0177.0.0.1/",
        "http://017700000001/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://0X7F.0.0.1/",
        "http://127.0x1/",
        "http://127.0.0.1./",
        "http://2130706433./",
        "http://LOCALHOST/",
        "http://localhost.:8080/",
        "http://a.LocalHost/",
        "http://[2002:7f00:1::]/",
    ],
)
def test_a_private_url_is_refused_unless_it_is_allowed(url: str) -> None:
    with pytest.raises(NotAllowed, match="public address"):
        check_url(url, allows_private=False)
    check_url(url, allows_private=True)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "ftp://example.com/",
        "file:///etc/passwd",
        "http://",
        "http:///path",
        "http://ann@example.com/",
        "http://ann:pw@example.com/",
        "http://example.com@127.0.0.1/",
        "http://127.0.0.1:80@example.com/",
        "http://example.com%00.evil/",
        "http://127\u30020\u30020\u30021/",
        "http://\uff11\uff12\uff17.0.0.1/",
        "http://\u2460/",
        "http:127.0.0.1/",
        "gopher://example.com/",
        "http://@example.com/",
        "http://example.com:0/",
        "http://example.com:99999/",
        "http://example.com:x/",
        "http://exa mple.com/",
        "http://example.com/\n",
        "http://example.com\\@127.0.0.1/",
        "http://%31%32%37.0.0.1/",
        "http://[fe80::1%25eth0]/",
        "http://b\u00fccher.example/",
        "http://[::1/",
        "http://example.com/#part",
        "http://example.com/" + "x" * 2048,
    ],
)
@pytest.mark.parametrize("allows_private", [True, False])
def test_what_is_no_plain_url_is_refused_always(url: str, allows_private: bool) -> None:
    with pytest.raises(InvalidRequest):
        check_url(url, allows_private=allows_private)


def test_a_signature_is_what_the_description_of_standard_webhooks_says() -> None:
    secret = new_secret()
    body = b'{"type":"x"}'
    headers = sign([secret], message_id="msg", moment=NOW, body=body)
    key = base64.b64decode(secret.reveal().removeprefix("whsec_"))
    assert len(key) == 32
    signed = b"msg." + headers["webhook-timestamp"].encode() + b"." + body
    mac = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers == {
        "webhook-id": "msg",
        "webhook-timestamp": str(int(NOW.timestamp())),
        "webhook-signature": f"v1,{mac}",
    }


def test_a_signature_is_that_of_the_published_example() -> None:
    headers = sign(
        [Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")],
        message_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        moment=datetime.fromtimestamp(1614265330, UTC),
        body=b'{"test": 2432232314}',
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("attempts", "longest"), [(0, 2), (1, 4), (4, 32), (5, 60), (6, 60), (100000, 60)]
)
def test_the_wait_doubles_up_to_a_limit_and_varies(attempts: int, longest: float) -> None:
    assert back_off(attempts, CONFIG, 0.0) == longest
    assert back_off(attempts, CONFIG, 1.0) == longest / 2


def test_a_failed_try_is_repeated_later() -> None:
    noted = after_try(DELIVERY, FAILED, CONFIG, NOW, 0.0)
    assert noted.state is DeliveryState.PENDING
    assert (noted.attempts, noted.status) == (1, 500)
    assert noted.due_at == NOW + timedelta(seconds=2)


def test_a_delivery_is_given_up_at_an_age() -> None:
    later = NOW + timedelta(seconds=100)
    noted = after_try(DELIVERY, FAILED, CONFIG, later, 0.0)
    assert (noted.state, noted.settled_at) == (DeliveryState.FAILED, later)
    replayed = msgspec.structs.replace(DELIVERY, begun_at=later)
    assert after_try(replayed, FAILED, CONFIG, later, 0.0).state is DeliveryState.PENDING


def test_a_delivery_that_was_taken_is_done() -> None:
    noted = after_try(DELIVERY, DeliveryResult(is_delivered=True, status=204), CONFIG, NOW, 0.0)
    assert (noted.state, noted.status, noted.reason) == (DeliveryState.DELIVERED, 204, "")


def test_each_secret_signs() -> None:
    secrets = [new_secret(), new_secret()]
    headers = sign(secrets, message_id="msg", moment=NOW, body=b"{}")
    alone = [sign([one], message_id="msg", moment=NOW, body=b"{}") for one in secrets]
    expected = [one["webhook-signature"] for one in alone]
    assert headers["webhook-signature"].split(" ") == expected
    assert len(set(expected)) == 2


@pytest.mark.parametrize(
    ("status", "asked", "seconds"),
    [
        (429, "7", 7),
        (503, " 120 ", 120),
        (503, "0", 0),
        (503, "9" * 400, 999_999_999),
        (503, "Tue, 01 Jan 2030 00:01:00 GMT", 60),
        (503, "Tue, 01 Jan 2030 00:01:00", 60),
        (503, "Tue, 01 Jan 2019 00:00:00 GMT", 0),
        (503, "", 0),
        (503, "-5", 0),
        (503, "1.5", 0),
        (503, "soon", 0),
        (503, "\u0661", 0),
        (503, "Tue, 99 Jan 99999 00:00:00 GMT", 0),
        (500, "7", 0),
        (200, "7", 0),
    ],
)
def test_a_receiver_may_ask_for_some_time(status: int, asked: str, seconds: float) -> None:
    assert wait_seconds(status, asked, NOW) == seconds


@pytest.mark.parametrize(("asked", "waited"), [(1, 2), (30, 30), (10_000, 60)])
def test_what_a_receiver_asks_for_is_heeded_within_bounds(asked: float, waited: float) -> None:
    outcome = msgspec.structs.replace(FAILED, wait_seconds=asked)
    noted = after_try(DELIVERY, outcome, CONFIG, NOW, 0.0)
    assert noted.due_at == NOW + timedelta(seconds=waited)


def test_nothing_is_sent_to_who_is_disabled_or_wants_quiet() -> None:
    active = Subscription(
        id="s",
        user_id="u",
        url="https://example.com/",
        description="",
        event_kinds=None,
        changes=(),
        is_enabled=True,
        created_at=NOW,
        updated_at=NOW,
    )
    later = NOW + timedelta(seconds=1)
    assert may_send(active, NOW, later)
    assert not may_send(msgspec.structs.replace(active, is_enabled=False), NOW, later)
    quiet = msgspec.structs.replace(active, quiet_until=later)
    assert [may_send(quiet, moment, later) for moment in (NOW, later)] == [False, True]
    # Nobody may ask for so much time: the clock was wrong.
    assert may_send(quiet, NOW, NOW)
