"""Every error Clarion raises, with its stable code.

    ClarionError
    ├── ProtocolError     CLN-1xx   the peer broke the rules of the wire; costs it its connection
    ├── RequestError      CLN-2xx   one request cannot be done; the connection goes on
    ├── JournalError      CLN-3xx   persistent memory: full, damaged, foreign, failed
    ├── ConfigurationError  CLN-4xx a server cannot start as it was told to
    ├── ConnectionFailed …  CLN-5xx the client cannot reach, or has lost, its server
    ├── EventError        CLN-6xx   the event system: what is no event, or could not be delivered
    │   ├── BadEvent          └── EventTooLarge
    │   └── NotDelivered
    └── PipelineFailed …  CLN-7xx   a pipeline ended by a failure; an archive cannot be read

Codes and the names of facts are an interface; the text is not. An error crosses the wire as
(code, facts) and is raised on the other side as the same class.
"""

from __future__ import annotations

from typing import ClassVar

Fact = str | int | float | bool | None


class ClarionError(Exception):
    """Base of all. `code` is stable; `facts` are named values that the text was made of."""

    code: ClassVar[str] = "CLN-000"
    text: ClassVar[str] = "something went wrong: {detail}"
    by_code: ClassVar[dict[str, type[ClarionError]]] = {}

    def __init__(self, **facts: Fact) -> None:
        self.facts = facts
        super().__init__(facts)

    def __init_subclass__(cls) -> None:
        if cls.code in ClarionError.by_code:
            raise TypeError(f"error code {cls.code} is used twice")
        ClarionError.by_code[cls.code] = cls

    def __str__(self) -> str:
        return f"{self.code} {self.text.format_map(_Named(self.facts))}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.code, self.facts)


class _Named(dict[str, Fact]):
    """Format facts; a fact that an older or newer peer did not send shows as `?`."""

    def __missing__(self, key: str) -> str:
        return "?"


def from_code(code: str, facts: dict[str, Fact]) -> ClarionError:
    """The error that a peer reported. A code this version does not know keeps its facts."""
    kind = ClarionError.by_code.get(code)
    if kind is None:
        return UnknownError(**{**facts, "code": code})
    return kind(**facts)


def _rebuild(code: str, facts: dict[str, Fact]) -> ClarionError:
    return from_code(code, facts)


class UnknownError(ClarionError):
    code = "CLN-001"
    text = "the server reported {code}, which this version does not know"


class InternalFault(ClarionError):
    code = "CLN-002"
    text = "internal fault: {detail}"


# --- CLN-1xx: the wire --------------------------------------------------------------------------


class ProtocolError(ClarionError):
    code = "CLN-100"
    text = "protocol error: {detail}"


class FrameTooLarge(ProtocolError):
    code = "CLN-101"
    text = "a frame of {size} bytes is larger than the limit of {limit}"


class BadFrame(ProtocolError):
    code = "CLN-102"
    text = "a frame could not be read: {detail}"


class UnknownFrame(ProtocolError):
    code = "CLN-103"
    text = "frame type {type} is not known, or not allowed in state {state}"


class VersionMismatch(ProtocolError):
    code = "CLN-104"
    text = "no common version: the server speaks {server_min} to {server_max}, the client {client_min} to {client_max}"


class CreditExceeded(ProtocolError):
    code = "CLN-105"
    text = "sent {sent} bytes without credit to {destination}; the window is {window}"


class HeartbeatMissed(ProtocolError):
    code = "CLN-106"
    text = "nothing heard for {silent_ms} ms"


class BadBatch(ProtocolError):
    code = "CLN-107"
    text = "a batch could not be read: {detail}"


class SlowReader(ProtocolError):
    code = "CLN-108"
    text = "the connection did not read for too long: {waiting} bytes were waiting"


class HandshakeTimeout(ProtocolError):
    code = "CLN-109"
    text = "no handshake within {limit_ms} ms"


class TooManyConnections(ProtocolError):
    code = "CLN-110"
    text = "the server has its maximum of {limit} connections"


# --- CLN-2xx: requests --------------------------------------------------------------------------


class RequestError(ClarionError):
    code = "CLN-200"
    text = "the request cannot be done: {detail}"


class BadName(RequestError):
    code = "CLN-201"
    text = "{name!r} is not a valid name: {detail}"


class WrongKind(RequestError):
    code = "CLN-202"
    text = "{destination} is a {kind}, not a {wanted}"


class Blocked(RequestError):
    code = "CLN-203"
    text = "{destination} cannot take more now: {detail}"


class MessageTooLarge(RequestError):
    code = "CLN-204"
    text = "a message of {size} bytes is larger than the limit of {limit}"


class NoSuchDestination(RequestError):
    code = "CLN-205"
    text = "there is no destination {destination}"


class NoSuchSubscription(RequestError):
    code = "CLN-206"
    text = "{destination} has no subscription {subscription}"


class SubscriptionInUse(RequestError):
    code = "CLN-207"
    text = "subscription {subscription} of {destination} is in use: it has a consumer, or a reader"


class ProducerForgotten(RequestError):
    code = "CLN-208"
    text = "the broker no longer remembers producer {producer}: whether its unconfirmed messages were stored is unknown"


class LimitReached(RequestError):
    code = "CLN-209"
    text = "{what}: the limit of {limit} is reached"


class BadArgument(RequestError):
    code = "CLN-210"
    text = "{argument}: {detail}"


class UnknownVerb(RequestError):
    code = "CLN-212"
    text = "there is no command {verb}"


class SessionClosed(RequestError):
    code = "CLN-213"
    text = "the session is closed"


class NotReady(RequestError):
    code = "CLN-215"
    text = "the message manager is not ready: {detail}"


class BadSelector(RequestError):
    code = "CLN-216"
    text = "the selector {selector!r} is wrong at column {column}: {detail}"


class BadPattern(RequestError):
    code = "CLN-217"
    text = "{pattern!r} is not a pattern: {detail}"


class TransactionRolledBack(RequestError):
    code = "CLN-218"
    text = "the transaction was rolled back: {reason}"


class NoSuchHandle(RequestError):
    code = "CLN-219"
    text = "there is no prepared transaction {handle}: it was resolved, or has expired"


class NoReply(RequestError):
    code = "CLN-220"
    text = "no reply from {destination} within {limit_ms} ms"


class NoSuchStream(RequestError):
    code = "CLN-221"
    text = "there is no large body {stream} at {destination}"


class ProducerTaken(RequestError):
    code = "CLN-222"
    text = "another sender has taken over the producer id {producer}: this one is over, and stores nothing any more"


class CheckpointLost(RequestError):
    code = "CLN-223"
    text = "subscription {subscription} of {destination} was read by a query whose checkpoint is not here: {hint}"


# --- CLN-3xx: persistent memory -----------------------------------------------------------------


class JournalError(ClarionError):
    code = "CLN-300"
    text = "journal: {detail}"


class JournalFull(JournalError):
    code = "CLN-301"
    text = "persistent memory is full: {wanted} bytes wanted, {room} left"


class JournalFailed(JournalError):
    code = "CLN-302"
    text = "persistent memory failed in {operation}: {detail}; what the disk holds is unknown, so the process stops"


class DirectoryInUse(JournalError):
    code = "CLN-303"
    text = "another server uses the data directory {path}"


class NewerFormat(JournalError):
    code = "CLN-304"
    text = "{path} has format version {version}; this program reads up to {supported}"


class RecordDamaged(JournalError):
    code = "CLN-305"
    text = "the record at position {position} is damaged: {detail}"


class NoSpace(JournalError):
    code = "CLN-306"
    text = "{path} has {free} bytes free; at least {needed} are needed"


class MetadataDamaged(JournalError):
    code = "CLN-307"
    text = "no checkpoint can be read, and the log before it was recycled: {detail}"


# --- CLN-4xx: starting --------------------------------------------------------------------------


class ConfigurationError(ClarionError):
    code = "CLN-400"
    text = "configuration: {detail}"


class BadSetting(ConfigurationError):
    code = "CLN-401"
    text = "{file}: {detail}"


class AddressInUse(ConfigurationError):
    code = "CLN-402"
    text = "{address} is in use"


class NoPermission(ConfigurationError):
    code = "CLN-403"
    text = "no permission for {path}"


class InsecureAddress(ConfigurationError):
    code = "CLN-404"
    text = "without users and certificates a server listens on loopback only; {address} needs --insecure"


class MissingExtra(ConfigurationError):
    code = "CLN-405"
    text = "this needs the extra {extra}: pip install 'clarion[{extra}]'"


class JavaMissing(ConfigurationError):
    code = "CLN-406"
    text = "Spark needs Java 17 or newer: {detail}"


class PipelineRuns(ConfigurationError):
    code = "CLN-407"
    text = "pipeline {name} runs already: process {pid} has {path}"


# --- CLN-5xx: the client's connection -----------------------------------------------------------


class ConnectionFailed(ClarionError):
    code = "CLN-500"
    text = "no connection to {url}: {detail}"


class ConnectionLost(ClarionError):
    code = "CLN-501"
    text = "the connection was lost: {detail}"


class BadUrl(ClarionError):
    code = "CLN-502"
    text = "{url!r} is not a Clarion address: {detail}"


class Timeout(ClarionError):
    code = "CLN-503"
    text = "no answer within {limit_ms} ms: {detail}"


class AuthenticationFailed(ClarionError):
    code = "CLN-504"
    text = "authentication failed: {detail}"


# --- CLN-6xx: events ----------------------------------------------------------------------------


class EventError(ClarionError):
    code = "CLN-600"
    text = "event system: {detail}"


class BadEvent(EventError):
    code = "CLN-601"
    text = "this is no event: {what}: {detail}"


class EventTooLarge(BadEvent):
    code = "CLN-602"
    text = "an event of {size} bytes is larger than the limit of {limit}"


class NotDelivered(EventError):
    code = "CLN-603"
    text = "the event was not delivered: {reason}"


class RecipientOwes(EventError):
    code = "CLN-604"
    text = "recipient {recipient} has not confirmed {count} events; removing it gives them up, and must be forced"


class NoSuchRecipient(EventError):
    code = "CLN-605"
    text = "there is no recipient {recipient}"


class NoSuchDeadEvent(EventError):
    code = "CLN-606"
    text = "there is no dead event {number}"


class EngineAbsent(EventError):
    code = "CLN-610"
    text = "nobody delivers for {path}: {detail}"


class WrongProcess(EventError):
    code = "CLN-620"
    text = "section {section} was opened by another process, of which this one is a fork"


class SectionInUse(EventError):
    code = "CLN-621"
    text = "another process writes section {section}"


class SectionDamaged(EventError):
    code = "CLN-622"
    text = "{path} cannot be read as a section: {detail}"


# --- CLN-7xx: pipelines -------------------------------------------------------------------------


class PipelineFailed(ClarionError):
    code = "CLN-700"
    text = "pipeline {name} failed: {detail}"


class ArchiveDamaged(ClarionError):
    code = "CLN-701"
    text = "archive {path}: {detail}"
