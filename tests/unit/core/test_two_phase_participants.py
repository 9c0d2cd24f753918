"""A participant in two-phase commit: what time does to it, what it forgets, and what it cannot write (B-14)."""

from __future__ import annotations

from itertools import pairwise

from clarion import limits
from clarion.core import two_phase as tp
from clarion.core.two_phase.messages import EXPIRED, NOT_PREPARED, SESSION_ENDED, SILENT, TOO_LONG
from clarion.core.two_phase.participant import Stimulus
from clarion.core.two_phase.participants import OR_FORGOTTEN
from clarion.core.two_phase.transitions import State
from tests.unit.core.participant_host import ABORT, AFTER, BEFORE, BUNDLE, COMMIT, HERE, NOW_MS, OTHER, Host, T

# --- time ---------------------------------------------------------------------------------------------


def test_b14_a_prepared_participant_asks_with_growing_pauses_until_it_is_answered() -> None:
    host = Host(tp.Prepared(T, (BEFORE, HERE)))
    host.tell(tp.Tick(), NOW_MS)
    asked: list[int] = []
    now_ms = NOW_MS
    while len(asked) < 10:
        due_ms = host.participants.due_ms
        assert due_ms is not None
        now_ms = max(now_ms, due_ms)
        asked += [now_ms for answer in host.answers(tp.Tick(), now_ms) if answer == (tp.Ask(T, HERE), BEFORE)]
    assert asked[0] == NOW_MS + limits.TRANSACTION_SILENCE_MS_MAX
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert pauses[0] == limits.TRANSACTION_RETRY_MS_MIN
    assert pauses == sorted(pauses)
    assert pauses[-1] == limits.TRANSACTION_RETRY_MS_MAX
    assert host.answers(tp.Final(T, COMMIT), now_ms) == [(tp.Completed(T, HERE, COMMIT), None)]
    assert host.answers(tp.Tick(), now_ms + 10**9) == []
    assert len(host.participants) == 0


def test_b14_a_coordinator_that_speaks_is_not_taken_for_silent() -> None:
    host = Host(tp.Prepared(T, (HERE, AFTER)))
    host.tell(tp.Tick(), NOW_MS)
    almost_ms = NOW_MS + limits.TRANSACTION_SILENCE_MS_MAX - 1
    assert host.answers(tp.Prepare(T, (HERE, AFTER)), almost_ms) == [(tp.Ready(T, HERE), None)]
    assert host.tell(tp.Tick(), almost_ms + limits.TRANSACTION_SILENCE_MS_MAX - 1) == []
    host.tell(tp.Tick(), almost_ms + limits.TRANSACTION_SILENCE_MS_MAX)
    assert host.log[-1] == tp.Decided((T,), ABORT, SILENT)


def test_b14_an_unprepared_transaction_ends_with_its_time_and_with_its_session() -> None:
    host = Host()
    for transaction in (T, BUNDLE, OTHER):
        assert host.tell(tp.Stage(transaction)) == [tp.Log(tp.Began(transaction))]
        assert host.tell(tp.Stage(transaction)) == []
    host.tell(tp.Prepare(OTHER, (BEFORE, HERE)))
    assert host.tell(tp.SessionEnded(OTHER.producer)) == []  # it is prepared: that is not the session's any more
    assert host.tell(tp.SessionEnded(T.producer)) == [tp.Log(tp.Decided((T,), ABORT, SESSION_ENDED))]
    assert host.tell(tp.SessionEnded(T.producer)) == []
    assert host.tell(tp.Stage(T)) == [tp.Refuse(SESSION_ENDED)]
    late = host.tell(tp.Tick(), NOW_MS + limits.TRANSACTION_MS_DEFAULT)
    assert tp.Log(tp.Decided((BUNDLE,), ABORT, TOO_LONG)) in late
    assert host.state(OTHER) is State.PREPARED


def test_b14_a_held_transaction_waits_for_its_owner_until_it_expires() -> None:
    expires_at_ms = NOW_MS + 3_600_000
    holder, other = Host(group=HERE), Host(group=AFTER)
    prepare = tp.Prepare(T, (HERE, AFTER), expires_at_ms=expires_at_ms)
    for host in (holder, other):
        host.tell(prepare)
        assert host.participants.held() == [(tp.Handle(T, (HERE, AFTER)), expires_at_ms)]
        assert host.tell(tp.Tick(), expires_at_ms - 1) == []
    assert holder.tell(tp.Ask(T, AFTER), expires_at_ms - 1) == []  # the other clock is ahead
    ask = other.answers(tp.Tick(), expires_at_ms)
    assert ask == [(tp.Ask(T, AFTER), HERE)]
    told = holder.answers(ask[0][0], expires_at_ms)  # type: ignore[arg-type]
    assert told == [(tp.Final(T, ABORT, EXPIRED), None)]
    other.tell(told[0][0], expires_at_ms)  # type: ignore[arg-type]
    assert (holder.state(), other.state()) == (State.ABORTED, State.ABORTED)
    assert holder.participants.held() == []


def test_b14_a_holder_that_committed_tells_the_others_until_all_have_completed() -> None:
    host = Host(tp.Prepared(T, (HERE, AFTER, 9)), tp.Decided((T,), COMMIT))
    host.tell(tp.Tick(), NOW_MS)
    late_ms = NOW_MS + limits.TRANSACTION_SILENCE_MS_MAX
    assert host.answers(tp.Tick(), late_ms) == [(tp.Final(T, COMMIT), AFTER), (tp.Final(T, COMMIT), 9)]
    assert host.tell(tp.Completed(T, 9, COMMIT), late_ms) == []
    late_ms += limits.TRANSACTION_RETRY_MS_MAX
    assert host.answers(tp.Tick(), late_ms) == [(tp.Final(T, COMMIT), AFTER)]
    assert host.tell(tp.Completed(T, AFTER, COMMIT), late_ms) == [tp.Log(tp.Closed(T))]
    assert host.state() is State.COMMITTED
    assert len(host.participants) == 0


def test_b14_one_tick_does_a_bounded_amount_of_work() -> None:
    host = Host(*(tp.Began(tp.TransactionId.of(number, 1)) for number in range(2_500)))
    host.tell(tp.Tick(), NOW_MS)
    late_ms = NOW_MS + limits.TRANSACTION_MS_DEFAULT
    ended = [len(host.tell(tp.Tick(), late_ms)) for _ in range(4)]
    assert ended == [1_000, 1_000, 500, 0]


def test_b14_a_decision_that_comes_late_cannot_commit() -> None:
    """The holder was asked before its Prepare arrived: it must not become ready after that."""
    holder, other = Host(group=1), Host(group=2)
    prepare = tp.Prepare(T, (1, 2))
    other.tell(prepare)
    ((told, _),) = holder.answers(tp.Ask(T, 2))
    assert holder.answers(prepare) == [(tp.Fail(T, 1, NOT_PREPARED), None)]
    assert holder.answers(tp.Decide(T, COMMIT)) == [(tp.Completed(T, 1, ABORT, NOT_PREPARED), None)]
    assert isinstance(told, tp.Final)
    other.tell(told)
    assert (holder.state(), other.state()) == (State.ABORTED, State.ABORTED)


# --- durability ---------------------------------------------------------------------------------------


def test_b14_an_entry_that_cannot_be_written_changes_nothing() -> None:
    host = Host(tp.Began(T))
    before = host.participants.dump()
    stimuli: list[Stimulus] = [tp.Prepare(T, (HERE, AFTER)), tp.CommitOne(T), tp.Ask(T, AFTER), tp.Final(T, ABORT)]
    stimuli += [tp.SessionEnded(T.producer), tp.Stage(OTHER), tp.Tick()]
    for stimulus in stimuli:  # nothing that is said is carried out
        host.participants.handle(stimulus, NOW_MS + 10 * limits.TRANSACTION_MS_DEFAULT)
        assert host.participants.dump() == before
    assert host.answers(tp.CommitOne(T)) == [(tp.Completed(T, HERE, COMMIT), None)]


# --- memory -------------------------------------------------------------------------------------------


def _number(number: int) -> tp.TransactionId:
    return tp.TransactionId.of(99, number)


def test_b14_a_repeated_commit_gets_the_same_answer_until_it_is_forgotten() -> None:
    host = Host(outcomes_max=3)
    for number in range(4):
        assert host.answers(tp.CommitOne(_number(number))) == [(tp.Completed(_number(number), HERE, COMMIT), None)]
    assert (len(host.participants.outcomes), host.participants.outcomes.forgotten) == (3, 1)
    for number in (1, 2, 3):  # the work is gone, the outcome is not
        assert host.answers(tp.CommitOne(_number(number)), problem="staged batches are missing") == [
            (tp.Completed(_number(number), HERE, COMMIT), None)
        ]
    ((told, _),) = host.answers(tp.CommitOne(_number(0)), problem="staged batches are missing")
    assert told == tp.Completed(_number(0), HERE, ABORT, f"staged batches are missing, {OR_FORGOTTEN}")


def test_b14_a_commit_that_somebody_may_still_ask_for_is_not_forgotten() -> None:
    host = Host(tp.Prepared(T, (HERE, AFTER)), tp.Decided((T,), COMMIT), outcomes_max=2)
    for number in range(10):
        host.tell(tp.CommitOne(_number(number)))
    assert host.answers(tp.Ask(T, AFTER)) == [(tp.Final(T, COMMIT), None)]
    host.tell(tp.Close(T))
    for number in range(10, 20):
        host.tell(tp.CommitOne(_number(number)))
    assert host.state() is State.UNKNOWN
    # Only what was prepared is told so, and a repetition finds what was done long ago.
    assert host.answers(tp.Final(T, COMMIT)) == [(tp.Completed(T, HERE, COMMIT), None)]


def test_b14_there_is_a_limit_to_open_transactions() -> None:
    host = Host()
    host.participants = tp.Participants(HERE, open_max=2)
    for number in range(2):
        host.tell(tp.Stage(_number(number)))
    (refused,) = host.tell(tp.Stage(T))
    assert isinstance(refused, tp.Refuse)
    ((failed, _),) = host.answers(tp.Prepare(T, (BEFORE, HERE)))
    assert isinstance(failed, tp.Fail)
    assert host.answers(tp.Prepare(_number(0), (BEFORE, HERE))) == [(tp.Ready(_number(0), HERE), None)]
    assert host.answers(tp.CommitOne(OTHER)) == [(tp.Completed(OTHER, HERE, COMMIT), None)]  # leaves nothing open
