"""People as recipients: e-mail, chat and over a hundred other services, through `apprise` (`clarion[alerts]`).

    People(["mailtos://user:password@example.com?to=on-call@example.com", "slack://…"], interval_s=60,
           filter="severity_level >= 50")

Guarantees
    1. An event is confirmed when every address has taken a message with it.
    2. At most one message in `interval_s` seconds to each address. What happens meanwhile is collected, up to
       `batch_events_max` events in one message; nothing is confirmed that was not sent.
    3. If one address fails, the others are not sent the same again (as long as the process lives).
    4. Passwords and tokens of addresses appear in no error.

Who must hear of something at once is a recipient of its own, with its own filter and no interval.
"""

from __future__ import annotations

import asyncio
import logging
import string
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from clarion import limits
from clarion.errors import BadArgument, MissingExtra, NotDelivered
from clarion.events.recipients.base import Blocking
from clarion.events.recipients.recent import RecentIds

if TYPE_CHECKING:
    from clarion.events.event import Event

TITLE = "{severity}: {type} at {source}"
TITLE_MANY = "{count} events, the worst: {severity} {type} at {source}"
LINE = "{time} {severity} {type} at {source} {data}"
DATA_CHARACTERS_MAX = 500
EVENTS_PER_MESSAGE_DEFAULT = 100
FIELDS = frozenset(("id", "time", "type", "severity", "source", "data", "attributes", "count"))


class People(Blocking):
    """Sends to all `addresses` (URLs as apprise has them) one message for one or several events.

    Templates have `{id}`, `{time}`, `{type}`, `{severity}`, `{source}`, `{data}`, `{attributes}` and `{count}`.
    `title_many` describes the worst event of several, `line` is written for each.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        name: str = "people",
        filter: str = "",
        title: str = TITLE,
        title_many: str = TITLE_MANY,
        line: str = LINE,
        interval_s: float = 0.0,
        batch_events_max: int = EVENTS_PER_MESSAGE_DEFAULT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, filter, batch_events_max)
        if not 0 <= interval_s <= 86_400:
            raise BadArgument(argument="interval_s", detail=f"{interval_s} is not 0 to 86400")
        for argument, template in (("title", title), ("title_many", title_many), ("line", line)):
            _check_template(argument, template)
        self._title, self._title_many, self._line = title, title_many, line
        self._interval_s = interval_s
        self._clock = clock
        self._next_s = float("-inf")
        addresses = [addresses] if isinstance(addresses, str) else list(addresses)
        if not addresses:
            raise BadArgument(argument="addresses", detail="there is none")
        self._services = [_service(address, number) for number, address in enumerate(addresses, 1)]
        self._sent = [RecentIds(maximum=max(limits.EVENT_IDS_REMEMBERED, 4 * batch_events_max)) for _ in addresses]

    async def ready(self) -> None:
        """Returns when a message may be sent: whoever waits here before picking events picks more of them."""
        if (wait_s := self._next_s - self._clock()) > 0:
            await asyncio.sleep(wait_s)

    async def deliver(self, events: Sequence[Event]) -> None:
        await self.ready()
        await super().deliver(events)

    # --- in the recipient's own thread ----------------------------------------------------------------

    def process(self, events: Sequence[Event]) -> None:
        self._next_s = self._clock() + self._interval_s  # also if it fails: a server that refuses is not hammered
        problems = []
        for service, sent in zip(self._services, self._sent, strict=True):
            fresh = [event for event in events if event.id not in sent]
            if fresh:
                problem = self._send(service, fresh)
                if problem is None:
                    sent.update(event.id for event in fresh)
                else:
                    problems.append(problem)
        if problems:
            raise NotDelivered(reason="; ".join(problems), permanent=False)

    def _send(self, service: Any, events: Sequence[Event]) -> str | None:
        """Why not, or None."""
        apprise: Any = import_module("apprise")
        title, body = self.message(events)
        worst = max(event.severity for event in events)
        kind = "failure" if worst >= 40 else "warning" if worst >= 30 else "info"
        with apprise.LogCapture(level=logging.WARNING, fmt="%(message)s") as told:
            try:
                if service.notify(body=body, title=title, notify_type=kind, body_format="text"):
                    return None
            except Exception as error:  # a plug-in's own: whatever it is, nothing was sent
                return f"{_shown(service)}: {type(error).__name__}: {error}"
            why = " ".join(told.getvalue().split())[:500]
        return f"{_shown(service)}: {why or 'it was not sent'}"

    def message(self, events: Sequence[Event]) -> tuple[str, str]:
        """Title and text of the message for these events."""
        worst = max(events, key=lambda event: event.severity)  # the first of the worst
        template = self._title if len(events) == 1 else self._title_many
        title = _one_line(template.format_map(_fields(worst, len(events))))
        return title, "\n".join(self._line.format_map(_fields(event, len(events))) for event in events)


def _service(address: str, number: int) -> Any:
    """An apprise object of one address each, so that one that fails is known apart. Raises without the address."""
    try:
        apprise: Any = import_module("apprise")
    except ImportError:
        raise MissingExtra(extra="alerts") from None
    service = apprise.Apprise()
    if not isinstance(address, str) or not service.add(address):
        scheme = address.partition(":")[0] if isinstance(address, str) and "://" in address else "?"
        detail = f"number {number} ({scheme}://…) is not an address that apprise understands"
        raise BadArgument(argument="addresses", detail=detail)
    return service


def _shown(service: Any) -> str:
    """An address without its secrets."""
    return str(service[0].url(privacy=True)).partition("?")[0]


def _fields(event: Event, count: int) -> dict[str, str]:
    return {
        "id": event.id,
        "time": event.time,
        "type": event.type,
        "severity": event.severity.text,
        "source": event.source,
        "data": _data(event),
        "attributes": " ".join(f"{name}={_text(value)}" for name, value in event.attributes.items()),
        "count": str(count),
    }


def _data(event: Event) -> str:
    data = event.data
    if data is None:
        return ""
    text = _text(data) if isinstance(data, bytes | str) else msgspec.json.encode(data).decode()
    return text if len(text) <= DATA_CHARACTERS_MAX else f"{text[:DATA_CHARACTERS_MAX]}…"


def _text(value: object) -> str:
    return f"{len(value)} bytes" if isinstance(value, bytes) else str(value)


def _one_line(text: str) -> str:
    """A title with nothing in it that could become another header of a mail."""
    return "".join(c if c.isprintable() else " " for c in text).strip()


def _check_template(argument: str, template: str) -> None:
    """Raises `BadArgument` unless it has known fields only, and none that reaches into objects."""
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
        template.format_map(dict.fromkeys(FIELDS, ""))
    except (ValueError, KeyError, AttributeError, IndexError, TypeError) as error:
        raise BadArgument(argument=argument, detail=f"{template!r} is not a template: {error}") from None
    unknown = sorted(set(fields) - FIELDS)
    if unknown:
        detail = f"there is no field {unknown[0]!r}: there are {', '.join(sorted(FIELDS))}"
        raise BadArgument(argument=argument, detail=detail)
