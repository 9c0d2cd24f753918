"""Every bound in Clarion, in one place, with the relations between them checked on import.

Units are the last word of a name. A bound that a server may lower (on a small file system, say) is
told to clients in the handshake; none is ever raised.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# --- names and messages ---------------------------------------------------------------------------
NAME_BYTES_MAX = 255
"""A destination's, subscription's or client's name, in UTF-8."""
HEADERS_BYTES_MAX = 64 * KIB
"""Headers and properties of one message, encoded."""
PROPERTIES_MAX = 256
"""Properties of one message."""
PRIORITY_MAX = 9
PRIORITY_DEFAULT = 4
SELECTOR_BYTES_MAX = 8 * KIB
"""The text of a selector, in UTF-8."""
SELECTOR_DEPTH_MAX = 64
"""How deep parentheses, NOT and signs nest in a selector."""
SELECTORS_CACHED_MAX = 256
"""Compiled selectors that a process remembers by their text."""

# --- batches and frames ---------------------------------------------------------------------------
BATCH_BYTES_MAX = 4 * MIB
"""One batch on the wire and in the journal; so also the largest message that is not streamed."""
BATCH_MESSAGES_MAX = 65_536
BATCH_BYTES_TARGET = 128 * KIB
"""A client closes a batch at this size: larger ones gain no throughput and cost latency."""
BATCH_MESSAGES_TARGET = 4_096
FRAME_OVERHEAD_BYTES_MAX = 4 * KIB
FRAME_BYTES_MAX = BATCH_BYTES_MAX + FRAME_OVERHEAD_BYTES_MAX
DELIVER_BYTES_TARGET = 256 * KIB
"""One delivery frame carries at most this, except when a single batch slice is larger."""
RANGES_PER_FRAME_MAX = 1_024
"""Ranges in one confirmation; a client with more sends several."""

# --- large bodies ---------------------------------------------------------------------------------
FRAGMENT_BYTES_MAX = 240 * KIB
"""One fragment of a large body; two fit the smallest segment, other messages wait no longer than for one."""
FRAGMENTS_UNANSWERED_MAX = 4
"""Fragments of one body on their way, to the broker or to a reader: enough to keep the disk busy."""
FRAGMENTS_PER_STREAM_MAX = 1 << 20
"""So the largest body has 240 GiB, and its index 21 MB."""
FRAGMENTS_PENDING_BYTES_MAX = 16 * MIB
"""Fragments that a message manager holds that are not durable yet, over all sessions; then it lets senders wait."""
FRAGMENT_READS_MAX = 4
"""Fragments that are read for consumers at a time, over all sessions."""
FRAGMENT_OTHERS_MS = 100
"""So long after a small message was published or confirmed, others are about, and large bodies make way: …"""
FRAGMENT_REST_DEFAULT = 3.0
"""… after each fragment they rest so many times as long as it took, unless a setting says otherwise, …"""
FRAGMENT_REST_MAX = 100.0
FRAGMENT_REST_MS_MAX = 50
"""… but no longer than this, so that they come on whatever happens."""
STREAMS_PER_DESTINATION_MAX = 1_024
"""Large bodies on their way to one destination, those that nobody sends any more included."""
STREAM_IDLE_MS_DEFAULT = 24 * 3_600_000
"""A large body that is not complete is given up when nothing of it came for so long."""
STREAMS_TIED_MS = 30_000
"""Large bodies that hold all the room of a destination and wait for more: after so long one of them is given up."""
STREAM_KEYS_MAX = 4_096
"""Keys of large bodies whose messages were stored that a message manager remembers; the oldest is forgotten first."""
STREAM_KEY_BYTES_MAX = 1 * KIB

# --- memory ---------------------------------------------------------------------------------------
MEMORY_BLOCK_BYTES = 1 * MIB
"""What a server frees of blocks up to this size stays with it, …"""
MEMORY_KEPT_BYTES = 8 * MIB
"""… up to so much for each thread; larger blocks go back to the kernel at once."""

# --- connections and sessions ---------------------------------------------------------------------
CONNECTIONS_MAX = 20_000
SESSIONS_PER_CONNECTION_MAX = 256
CONSUMERS_PER_SESSION_MAX = 1_024
HANDSHAKE_MS_MAX = 10_000
HEARTBEAT_MS_DEFAULT = 10_000
HEARTBEAT_MS_MIN = 100
HEARTBEAT_MS_MAX = 600_000
HEARTBEATS_MISSED_MAX = 3
"""A peer that was silent for this many heartbeats is gone."""
CONNECTION_WAITING_BYTES_HIGH = 4 * MIB
"""When more waits to be written to one connection, message managers are told to pause its sessions …"""
CONNECTION_WAITING_BYTES_LOW = 1 * MIB
"""… and to go on when less does."""
CONNECTION_WAITING_BYTES_MAX = 32 * MIB
"""What may wait at most; pausing keeps it far below."""

# --- flow -----------------------------------------------------------------------------------------
PRODUCER_WINDOW_BYTES = 4 * MIB
"""What one session may have on its way to one destination without an answer."""
PUBLISH_PENDING_BYTES_MAX = 64 * MIB
"""What a message manager holds that is not durable yet, over all sessions; then it refuses."""
CONSUMER_CREDIT_MESSAGES_DEFAULT = 10_000
CONSUMER_CREDIT_BYTES_DEFAULT = 2 * MIB
CONSUMER_BATCHES_CREDIT_MESSAGES_DEFAULT = 65_536
CONSUMER_BATCHES_CREDIT_BYTES_DEFAULT = 8 * MIB
"""Whoever takes whole batches is after throughput: it is sent more ahead, so that it never waits for its credit."""
CONSUMER_CREDIT_MESSAGES_MAX = 1_000_000
CONSUMER_CREDIT_BYTES_MAX = 64 * MIB
UNCONFIRMED_MESSAGES_DEFAULT = 1_000_000
"""Bound on what one consumer holds unconfirmed: separate from credit, so that a transaction
larger than the prefetch does not hang."""
CLIENT_BUFFER_BYTES = 256 * MIB
"""What `send_nowait` takes before it raises `Blocked`."""

# --- destinations ---------------------------------------------------------------------------------
DESTINATIONS_MAX = 100_000
SUBSCRIPTIONS_PER_DESTINATION_MAX = 10_000
PRODUCERS_PER_DESTINATION_MAX = 16_384
"""Producers whose sequences a destination remembers; the longest silent one is forgotten first."""
PRODUCER_WINDOW_MESSAGES = 1 << 24
"""How far a producer's sequence may run ahead of its oldest unconfirmed one."""
PRODUCER_SPANS_MAX = 1 << 20
"""Runs of sequences of one producer that sparse batches may leave at a destination: some 90 bytes each."""
PAGE_SPAN_BYTES_MAX = 256 * KIB
"""One entry of a destination's index covers at most this much of the journal (or one batch)."""
DELIVERED_MARK_MESSAGES = 65_536
"""How far ahead a subscription's delivered mark is logged: after a crash at most this many
messages are flagged redelivered that were not."""

# --- patterns and policies --------------------------------------------------------------------------
PATTERN_BYTES_MAX = 1 * KIB
"""A `glob:` or `regex:` pattern, in UTF-8."""
PATTERN_MEMORY_BYTES_MAX = 64 * KIB
"""What one compiled pattern may take: a program of some 2,000 steps, so that a match costs milliseconds at worst."""
PATTERN_BLOCK_PATTERNS_MAX = 64
"""Patterns that are matched together; with more of them the automaton grows faster than it saves."""
PATTERN_BLOCK_MEMORY_BYTES_MAX = 2 * MIB
PATTERN_STEPS_TOGETHER_MAX = 128
"""Patterns with larger programs (usual ones have 20 to 60 steps) are matched one by one."""
POLICY_RULES_MAX = 1_000
"""Rules that are set online."""
POLICY_BYTES_MAX = 1 << 60
POLICY_MS_MAX = 10 * 366 * 86_400_000
POLICY_COUNT_MAX = 1_000_000_000
POLICY_FACTOR_MAX = 1_000.0

TEMPORARY_PER_CONNECTION_MAX = 1_000
"""Temporary destinations of one connection."""
PATTERNS_DURABLE_MAX = 10_000
"""Durable subscriptions to patterns."""
REASON_CHARACTERS_MAX = 1_000
"""Why a message was rejected."""

# --- transactions ---------------------------------------------------------------------------------
TRANSACTION_MS_DEFAULT = 300_000
"""An open transaction is rolled back after this."""
PREPARED_MS_DEFAULT = 24 * 3_600_000
"""A prepared transaction that nobody decides is rolled back after this."""
PREPARED_MS_MAX = 30 * 24 * 3_600_000
HANDLES_PER_COMMIT_MAX = 10_000
TRANSACTIONS_OPEN_MAX = 16_384
"""Transactions of one message manager that are not decided, or not yet known by everybody to be."""
TRANSACTION_PARTICIPANTS_MAX = 64
TRANSACTION_OUTCOMES_MAX = 262_144
"""Outcomes that a message manager remembers, so that a commit can be repeated: an hour of 72 transactions a
second. The oldest is forgotten first; a commit that is repeated after that is told that it is not known."""
TRANSACTION_RETRY_MS_MIN = 200
"""Pause before something is said again; it doubles …"""
TRANSACTION_RETRY_MS_MAX = 5_000
"""… up to this."""
TRANSACTION_PREPARE_MS_MAX = 20_000
"""Until then every message manager must be ready; otherwise the transaction is rolled back."""
TRANSACTION_SILENCE_MS_MAX = 30_000
"""A prepared transaction whose client manager was silent for so long asks the decision holder, which rolls it back
unless it has decided."""

# --- leases ---------------------------------------------------------------------------------------
LEASES_MAX = 10_000
"""Leases of one message manager, those included whose time is over until their room is needed."""
LEASE_MS_MIN = 100
LEASE_MS_MAX = 3_600_000

# --- journal --------------------------------------------------------------------------------------
SEGMENT_BYTES_MAX = 64 * MIB
SEGMENT_BYTES_MIN = 512 * KIB
SEGMENTS_MIN = 8
"""A journal is never smaller than this: active, spare, compaction, two checkpoints, and data."""
SEGMENTS_SPARE = 2
"""Free segments that the allocator keeps ready beyond the reserve, while it may grow."""
JOURNAL_BYTES_MAX_DEFAULT = 64 * GIB
GROUP_BYTES_MAX = 8 * MIB
GROUP_ALIGN_BYTES = 512
CHECKPOINT_PART_BYTES_MAX = 128 * KIB
CHECKPOINT_LOG_BYTES_MIN = 48 * MIB
"""A checkpoint is due after this much log, so that segments are soon used again instead of new ones being made …"""
CHECKPOINT_LOG_FACTOR = 16
"""… or after so many times its own size, if that is more: checkpoints are a small part of all that is written …"""
CHECKPOINT_LOG_BYTES_MAX = 256 * MIB
"""… but at last after this much …"""
CHECKPOINT_LOG_ENTRIES = 100_000
"""… or this many entries: replay time at the next start is bounded by both."""
READ_CACHE_BYTES = 64 * MIB
READ_AHEAD_PAGES = 4

# --- bus --------------------------------------------------------------------------------------------
BUS_MESSAGE_BYTES_MAX = FRAME_BYTES_MAX + 4 * KIB

# --- events -----------------------------------------------------------------------------------------
EVENT_TYPE_BYTES_MAX = 200
"""So that `events.` and a type are the name of a topic."""
EVENT_SOURCE_BYTES_MAX = 255
EVENT_BYTES_MAX_DEFAULT = 16 * KIB
"""Headers and data of one event, unless the event system is told otherwise …"""
EVENT_BYTES_MAX_MAX = 1 * MIB
"""… and what it can be told at most."""
EVENT_CAPACITY_DEFAULT = 20_000
"""Events of up to 1 KiB on average that persistent memory holds."""
EVENT_CAPACITY_MAX = 100_000_000
EVENT_INITIALISATION_CAPACITY_DEFAULT = 2_000
"""Events that are recorded while a system initialises."""
EVENT_BYTES_AVERAGE = 1 * KIB
"""What one event counts when space is allocated for a capacity."""
EVENT_GROUP_BYTES_MAX = 1 * MIB
"""What threads gather in one section for one sync; two such buffers exist per section that survives power loss."""
EVENT_BALLAST_BYTES = 8 * MIB
"""Small objects that a process with sections holds back for the time without memory."""
EVENT_CACHE_BYTES_MAX = 16 * MIB
"""Events that an engine holds in memory to deliver them."""
EVENT_CONTROL_BYTES_MAX = 1 * MIB
"""One request to an engine, or its answer."""
EVENT_LEASE_MS_DEFAULT = 3_000
"""How long the right to deliver a system's events holds without being renewed."""
EVENT_PARTNER_MS_DEFAULT = 1_000
"""How long `emit` waits for the partner's copy before the pair is degraded."""
EVENT_TEXT_BYTES_MAX = 4 * KIB
"""A text in an event that is made of a log record, an exception or a crash: its message, its traceback."""
EVENT_EXTRAS_MAX = 32
"""Fields of a log record beside the usual ones that go into its event."""
EVENT_LAST_WORDS_BYTES = 64 * KIB
"""Allocated for what a dying process has to say."""
EVENT_RECIPIENTS_MAX = 64
"""One bit each in the head of a record."""
EVENT_BATCH_EVENTS_DEFAULT = 256
"""Events that a recipient is given at a time, unless it says otherwise."""
EVENT_WINDOW_EVENTS = 16_384
"""Events that a recipient's pipeline knows of and that are not recorded as settled, of each rank."""
EVENT_DEAD_MAX = 65_536
"""Dead events that a ledger holds; then giving up waits."""
EVENT_LEDGER_BYTES_MAX = 256 * MIB
"""A ledger's journal; what it holds beside dead events is a few MiB at most."""
EVENT_VALUE_BYTES_MAX = 32 * KIB
"""One named value of a ledger …"""
EVENT_VALUES_MAX = 256
"""… and how many it has."""
EVENT_IDS_REMEMBERED = 8_192
"""Ids of the last events by which a recipient knows what it is given a second time."""
EVENT_LOG_TAIL_BYTES_MAX = 64 * MIB
"""What a log file's recipient reads of it at most, from the end, to know which events are in it."""
EVENT_STATISTICS_KEYS_MAX = 1_000
"""Types, and sources, that statistics count apart; what comes after is counted together."""
EVENT_LINK_FRAME_BYTES_DEFAULT = 256 * KIB
"""One frame between two event systems; a receiver with larger events is made with room for more."""
EVENT_LINK_FRAME_BYTES_MAX = 8 * MIB
EVENT_LINK_CONNECTIONS_MAX = 32
"""Connections from other event systems whose buffers exist before they come; more are refused."""
EVENT_LINK_SECTIONS_MAX = 1_024
"""Sections that one greeting names."""
EVENT_LINK_RANGES_MAX = 4_096
"""Ranges of confirmations in one frame; more go into several."""
EVENT_LINK_NOTE_BYTES_MAX = 64 * KIB
"""What an engine tells its partner's at a time."""
EVENT_PAIR_STATE_RANGES_MAX = 1_000_000
"""Ranges of confirmations that are given back at a time."""

for _smaller, _larger, _why in (
    (BATCH_BYTES_TARGET, BATCH_BYTES_MAX, "a batch closed by size fits the limit"),
    (BATCH_MESSAGES_TARGET, BATCH_MESSAGES_MAX, "a batch closed by count fits the limit"),
    (HEADERS_BYTES_MAX, BATCH_BYTES_TARGET, "headers alone never fill a batch"),
    (BATCH_BYTES_MAX, PRODUCER_WINDOW_BYTES, "one batch fits the producer window"),
    (PRODUCER_WINDOW_BYTES, PUBLISH_PENDING_BYTES_MAX, "one session's window fits the total"),
    (BATCH_BYTES_MAX, GROUP_BYTES_MAX, "one batch fits a group"),
    (2 * (FRAGMENT_BYTES_MAX + 4 * KIB) + 8 * KIB, SEGMENT_BYTES_MIN, "two fragments fit the smallest segment"),
    (FRAGMENTS_UNANSWERED_MAX * FRAGMENT_BYTES_MAX, PRODUCER_WINDOW_BYTES, "fragments under way fit the window"),
    (4 * GROUP_BYTES_MAX, SEGMENT_BYTES_MAX, "a segment holds several groups"),
    (CONSUMER_CREDIT_BYTES_DEFAULT, CONSUMER_BATCHES_CREDIT_BYTES_DEFAULT, "batches are the fast form"),
    (CONSUMER_BATCHES_CREDIT_BYTES_DEFAULT, CONSUMER_CREDIT_BYTES_MAX, "the default credit is allowed"),
    (CONSUMER_CREDIT_BYTES_MAX, PUBLISH_PENDING_BYTES_MAX, "credit is bounded like publishing"),
    (DELIVER_BYTES_TARGET, BATCH_BYTES_MAX, "a delivery frame fits the frame limit"),
    (CONNECTION_WAITING_BYTES_LOW, CONNECTION_WAITING_BYTES_HIGH, "a pause ends lower than it begins"),
    (CONNECTION_WAITING_BYTES_HIGH + 2 * FRAME_BYTES_MAX, CONNECTION_WAITING_BYTES_MAX, "a pause comes in time"),
    (len("regex:") + NAME_BYTES_MAX, PATTERN_BYTES_MAX, "a pattern can spell out any name"),
    (CHECKPOINT_LOG_BYTES_MIN, CHECKPOINT_LOG_BYTES_MAX, "a small checkpoint comes sooner than a large one"),
    (CHECKPOINT_PART_BYTES_MAX, SEGMENT_BYTES_MIN // 4, "a checkpoint part fits the smallest segment"),
    (TRANSACTION_RETRY_MS_MIN, TRANSACTION_RETRY_MS_MAX, "pauses grow"),
    (len("events.") + EVENT_TYPE_BYTES_MAX, NAME_BYTES_MAX, "every type of event has a topic"),
    (EVENT_BYTES_MAX_DEFAULT, EVENT_BYTES_MAX_MAX, "the default size of an event is allowed"),
    (2 * EVENT_BYTES_MAX_MAX, BATCH_BYTES_MAX, "any event fits a batch"),
    (2 * EVENT_TEXT_BYTES_MAX, EVENT_BYTES_MAX_DEFAULT // 2, "a message and its traceback fit an event"),
    (EVENT_RECIPIENTS_MAX, 64, "recipients are bits of a 64-bit number"),
    (
        TRANSACTION_PREPARE_MS_MAX + TRANSACTION_RETRY_MS_MAX,
        TRANSACTION_SILENCE_MS_MAX,
        "nobody gives up a coordinator that waits for others to be ready",
    ),
    (HANDLES_PER_COMMIT_MAX, TRANSACTIONS_OPEN_MAX, "one commit's prepared transactions can be open together"),
    (TRANSACTIONS_OPEN_MAX, TRANSACTION_OUTCOMES_MAX, "what is open can be remembered when it is decided"),
):
    if _smaller > _larger:
        raise AssertionError(f"limits contradict each other: {_why}")
