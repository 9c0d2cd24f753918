"""People as recipients, through apprise, against a real SMTP server and a real HTTP server (A-12)."""

from __future__ import annotations

import asyncio
import email
import email.policy
import sys
from collections.abc import Iterator
from email.message import EmailMessage
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from clarion.errors import BadArgument, MissingExtra, NotDelivered
from clarion.events.event import Event
from clarion.events.recipients import People
from tests.integration.events.http_server import HttpServer
from tests.unit.events.recipient_events import event, events


class MailServer:
    """A real SMTP server on a free port, and what it was sent."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.refuse = ""
        self._controller = _Controller(self, hostname="127.0.0.1", port=0)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if self.refuse:
            return self.refuse
        assert isinstance(envelope.content, bytes)
        mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        return "250 OK"

    @property
    def url(self) -> str:
        return (
            f"mailto://127.0.0.1:{self._controller.port}?from=events@example.com&to=on-call@example.com&mode=insecure"
        )


class _Controller(Controller):
    def _trigger_server(self) -> None:
        """It would connect to port 0, which stands for any free one."""
        assert isinstance(self.server, asyncio.Server)
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()  # type: ignore[no-untyped-call]


@pytest.fixture
def mail_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    monkeypatch.setattr("apprise.NotifyBase.request_rate_per_sec", 0)  # apprise itself waits 5.5 s between two mails
    server = MailServer()
    server._controller.start()
    try:
        yield server
    finally:
        server._controller.stop()


def deliver(recipient: People, *batches: list[Event]) -> None:
    async def scenario() -> None:
        async with recipient:
            for batch in batches:
                await recipient.deliver(batch)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def text(mail: EmailMessage) -> str:
    part = mail.get_body(("plain",))
    assert isinstance(part, EmailMessage)
    return str(part.get_content()).strip()


def test_a12_an_event_is_a_mail(mail_server: MailServer) -> None:
    deliver(People(mail_server.url), events(1))
    (mail,) = mail_server.mails
    assert mail["Subject"] == "error: disk.full at volume/7" and "on-call@example.com" in mail["To"]
    assert text(mail) == '2026-01-01T00:00:01.000000Z error disk.full at volume/7 {"free_bytes":1}'


def test_a12_several_events_are_one_mail(mail_server: MailServer) -> None:
    batch = [event(1), event(2, severity="alert", type="fan.stopped", data="too\nhot"), event(3)]
    people = People(mail_server.url, title_many="[{count}] {type}", line="{id} {source}: {data} {attributes}")
    deliver(people, batch)
    (mail,) = mail_server.mails
    assert mail["Subject"] == "[3] fan.stopped"
    assert [line.split(" ", 1)[0] for line in text(mail).splitlines() if " volume/7:" in line] == [
        one.id for one in batch
    ]


def test_a12_a_title_cannot_add_headers(mail_server: MailServer) -> None:
    deliver(People(mail_server.url, title="{data}"), events(1, data="x\r\nBcc: thief@example.com"))
    (mail,) = mail_server.mails
    assert mail["Bcc"] is None and mail["Subject"].startswith("x")


def test_a08_what_was_not_sent_is_not_confirmed(mail_server: MailServer) -> None:
    people = People(mail_server.url)
    mail_server.refuse = "451 try later"
    with pytest.raises(NotDelivered, match=r"mailto://127\.0\.0\.1") as caught:
        deliver(people, events(1))
    assert caught.value.facts["permanent"] is False
    mail_server.refuse = ""
    deliver(people, events(1))
    assert len(mail_server.mails) == 1


def test_a08_when_one_address_fails_the_others_are_not_told_twice(mail_server: MailServer) -> None:
    with HttpServer() as chat:
        people = People([f"json://127.0.0.1:{chat.port}/chat", mail_server.url])
        mail_server.refuse = "451 try later"
        with pytest.raises(NotDelivered):
            deliver(people, events(1))
        mail_server.refuse = ""
        deliver(people, events(1, 2))
        assert len(chat.requests) == 2 and b"volume/7" in chat.requests[0].body
        assert event(1).time.encode() not in chat.requests[1].body
    assert event(1).time in text(mail_server.mails[0]) and event(2).time in text(mail_server.mails[0])


def test_a12_secrets_of_addresses_are_not_told() -> None:
    with HttpServer(lambda request: (500, {}, b"")) as chat:
        people = People(f"json://user:secret@127.0.0.1:{chat.port}/chat?token=secret")
        with pytest.raises(NotDelivered, match="json://user") as caught:
            deliver(people, events(1))
    assert "secret" not in str(caught.value)


def test_a12_not_more_than_one_message_in_a_while(mail_server: MailServer) -> None:
    """What is delivered while nobody may be told waits, and is confirmed only when it was sent."""
    now_s = [100.0]

    async def scenario() -> None:
        async with People(mail_server.url, interval_s=600, clock=lambda: now_s[0]) as people:
            await people.ready()
            await people.deliver(events(1))
            assert len(mail_server.mails) == 1
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(people.deliver(events(2)), 0.05)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(people.ready(), 0.05)
            assert len(mail_server.mails) == 1
            now_s[0] += 600
            await people.ready()
            await people.deliver(events(2, 3, 4))
            assert len(mail_server.mails) == 2

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a12_without_the_extra_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(MissingExtra, match=r"clarion\[alerts\]"):
        People("json://127.0.0.1")


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [
        ("addresses", {"addresses": []}),
        ("addresses", {"addresses": "nonsense://user:secret@host"}),
        ("interval_s", {"interval_s": -1}),
        ("title", {"title": "{nothing}"}),
        ("title", {"title": "{type.__class__}"}),
        ("title_many", {"title_many": "{"}),
        ("line", {"line": "{0}"}),
    ],
)
def test_wrong_arguments_are_refused(argument: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match=argument) as caught:
        People(**{"addresses": "json://127.0.0.1", **wrong})
    assert "secret" not in str(caught.value)
