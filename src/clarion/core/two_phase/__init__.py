"""Two-phase commit with presumed abort, as pure machines: stimulus in, instructions out.

Theory of operation
    The session in a client manager has a `Coordinator` for its transaction; each message manager group has
    `Participants`, one `Participant` per transaction. The participants are sorted, and the first one *holds the
    decision*: one durable entry in its log is the moment at which the transaction is committed. Nothing that the
    coordinator knows must survive.

        one participant      CommitOne ─► Completed
        several              Prepare ─► all Ready ─► Decide(commit) to the holder ─► Completed
                             ─► Final(commit) to the others ─► all Completed ─► Close to the holder
        a Fail               Final(abort) to everybody else
        rollback, time-out   Decide(abort) to the holder ─► Completed ─► Final(what it says) to the others

    A participant that is prepared and hears nothing asks the holder. A holder that is asked about something it has
    not decided, or does not know, writes an abort first: so a decision that comes late cannot commit. A holder that
    committed tells the others itself until all have completed, and forgets nothing before.

    A transaction prepared *for an owner outside* (`Hold`) waits until it expires, then the holder aborts it. Its owner
    commits it in a *bundle*: a transaction of its own, whose work is to decide the handles in it. Being prepared, the
    bundle takes them over; it commits with all of them in one entry, or it is aborted and gives them back.

How a host drives a coordinator (a client manager)
    coordinator = Coordinator(TransactionId.of(session.producer, number), {group: Part(work), …})
    for said in coordinator.handle(Commit(), now_ms):  # or Rollback(), Hold(expires_at_ms)
        Send(to, message)       encode it and send it to that group
        Outcome, Held           answer every request of the client that waits
        Contradiction           write it to the operator's log
    Give it Ready, Fail and Completed as they come, and a Tick when `due_ms` is reached. Drop it when it is `done`, or
    when its client is gone: what it leaves undone, the participants settle. Every coordinator of a
    transaction must get the same participants, so a client that goes elsewhere must say them. A bundle is
    Part(handles=those of the group) at every group of its handles, under a producer id of the client manager's own. To
    give a handle up: a coordinator of its transaction and its participants, and Rollback().

How a host drives participants (a message manager)
    for said in participants.handle(message, now_ms, problem):
        Log(entry)              append and apply it: `participants.apply`, with what it does to destinations
        AfterDurable(message)   send when all entries so far are durable; `to` None: to the sender of `message`
        Refuse                  answer the batch with `TransactionRolledBack`
        Contradiction           write it to the operator's log
    Carry out all instructions of one call before the next. If `Log` cannot be written, drop them and what follows:
    nothing has changed, and whoever wants an answer asks again. Before a Prepare or CommitOne, if
    `participants.state_of(transaction) in UNPREPARED`, look whether its work can be done, and pass what is wrong as
    `problem`. Before a staged batch, handle `Stage`. When a session ends, handle `SessionEnded`. Give a Tick when
    `due_ms` is reached. After a restart, `load` the checkpoint and `apply` the entries after it, then tick.

    `Decided` may name several transactions (a bundle and its handles): their work takes effect in this one entry.
"""

from .coordinator import Coordinator, Part
from .identity import Handle, TransactionId
from .messages import (
    AfterDurable,
    Ask,
    Began,
    Close,
    Closed,
    Commit,
    CommitOne,
    Completed,
    Contradiction,
    Decide,
    Decided,
    Decision,
    Fail,
    Final,
    Held,
    Hold,
    Log,
    Outcome,
    Prepare,
    Prepared,
    Ready,
    Refuse,
    Rollback,
    Send,
    SessionEnded,
    Stage,
    Tick,
    decode,
    encode,
)
from .participants import Participants
from .transitions import UNPREPARED, State

__all__ = [
    "UNPREPARED",
    "AfterDurable",
    "Ask",
    "Began",
    "Close",
    "Closed",
    "Commit",
    "CommitOne",
    "Completed",
    "Contradiction",
    "Coordinator",
    "Decide",
    "Decided",
    "Decision",
    "Fail",
    "Final",
    "Handle",
    "Held",
    "Hold",
    "Log",
    "Outcome",
    "Part",
    "Participants",
    "Prepare",
    "Prepared",
    "Ready",
    "Refuse",
    "Rollback",
    "Send",
    "SessionEnded",
    "Stage",
    "State",
    "Tick",
    "TransactionId",
    "decode",
    "encode",
]
