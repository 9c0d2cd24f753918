"""What a name in a selector stands for: a header field, or else a property of the message.

JMS lets a selector use some header fields and no others, because the rest is not the sender's to say: where a message
goes, and how often it was delivered. Names that begin with `JMS` belong to JMS, except `JMS_…` and `JMSX…`,
which are properties like any other.
"""

from __future__ import annotations

import unicodedata

RESERVED = frozenset(("NULL", "TRUE", "FALSE", "NOT", "AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "ESCAPE"))

BATCH_FIELDS = {
    "JMSDeliveryMode": "'PERSISTENT'",
    "JMSPriority": "priority",
    "JMSTimestamp": "timestamp_ms",
    "JMSMessageID": "message_id",
}
"""Fields that are known without a look at the message's headers, as the variable of a generated function."""

HEADER_FIELDS = {
    "JMSCorrelationID": "headers.correlation_id",
    "JMSType": "headers.type",
    "JMSReplyTo": "headers.reply_to",
    "JMSXGroupID": "headers.group",
    "JMSExpiration": "headers.expires_at_ms",
}

_OF_ONE_DELIVERY = frozenset(
    ("JMSXDeliveryCount", "JMSXRcvTimestamp", "JMSXState", "JMSXConsumerTXID", "JMSRedelivered")
)

_START = frozenset(("Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Sc", "Pc"))
_PART = _START | {"Nd", "Mn", "Mc", "Cf"}
"""Unicode categories of Java's identifiers."""


def wrong_character(name: str) -> int:
    """Where `name` is no identifier of Java, or -1. Its ASCII characters are right: the lexer took no others."""
    if name.isascii():
        return -1
    allowed = _START
    for at, character in enumerate(name):
        if unicodedata.category(character) not in allowed and not character.isascii():
            return at
        allowed = _PART
    return -1


def why_not(name: str) -> str | None:
    """Why this name cannot stand in a selector, or None if it can."""
    if not name.startswith("JMS") or name in BATCH_FIELDS or name in HEADER_FIELDS:
        return None
    if name in _OF_ONE_DELIVERY:
        return f"{name} belongs to one delivery, not to the message, and cannot be selected by"
    if name.startswith(("JMSX", "JMS_")):
        return None
    return f"{name} is not a field that can be selected by; {', '.join(sorted(BATCH_FIELDS | HEADER_FIELDS))} are"
