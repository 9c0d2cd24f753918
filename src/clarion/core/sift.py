"""Sifting: the messages of one batch that go to a view's consumers, where each must be looked at.

Paid only by views with a selector or no-local, by batches with groups, and by batches of which a message has
expired. Three questions, in this order: has it expired (then nobody gets it), does the view want it, and whose
is its group (then it waits for its owner, and for nobody else).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clarion import ids
from clarion.core.consumer import Consumer
from clarion.core.entries import runs_of
from clarion.core.subscription import Range, Subscription
from clarion.core.turn import Turn
from clarion.core.view import Mask, View
from clarion.errors import BadBatch
from clarion.message import decode_headers
from clarion.wire.batch import GROUPS, Batch

if TYPE_CHECKING:
    from clarion.core.destination import Destination

_SIFT_MAX = 4_096
"""Messages looked at in one step: some milliseconds with a selector."""
_ASSIGNED_SPANS_MAX = 16_384
"""Runs of messages that may wait for one owner of groups, before what is behind them waits too."""
_LOOK_BYTES = 16
"""What looking at a message takes of a turn."""


def sift(
    destination: Destination,
    subscription: Subscription,
    view: View,
    turn: Turn,
    run: Range,
    batch_first: int,
    batch: Batch,
    active: list[Consumer],
) -> bool:
    """Deliver, assign, pass over or set aside the start of `run`, as far as one batch and one step go.

    False: an owner has so much waiting that nothing can be done before it takes some.
    """
    first = run[0]
    end = min(run[1], batch_first + batch.count, first + _SIFT_MAX)
    low, high = first - batch_first, end - batch_first
    alive: Mask = np.ones(end - first, np.bool_)
    for gone_first, gone_end in expired_runs(batch, low, high, turn.now_ms, turn.ttl_ms_max):
        alive[gone_first - low : gone_end - low] = False
        turn.expire(subscription, [(batch_first + gone_first, batch_first + gone_end)])
    wanted = alive.copy()
    ignores = active[0].ignores
    if ignores is not None and ignores(ids.producer_of(batch.first_id)):
        wanted[:] = False
    elif view.selector is not None:
        wanted &= view.selector.matches(batch, low, high)
    groups = batch.groups()[low:high].tolist() if batch.flags & GROUPS else None
    looked_bytes = (end - first) * _LOOK_BYTES  # taken at the end: looking alone must not use up a turn
    for piece_first, piece_end, is_wanted in _pieces(wanted, alive, first):
        if not is_wanted:
            view.take(piece_first, piece_end)
            if destination.kind == "topic":
                turn.unwanted.append((subscription, (piece_first, piece_end)))
            continue
        at = piece_first
        while at < piece_end:
            group, stop = (0, piece_end) if groups is None else _run_of_group(groups, at - first, piece_end - first)
            if groups is not None:
                stop += first
            taken = _hand_out(subscription, view, turn, at, stop, group, batch_first, batch, active)
            if taken == at:
                if at == first and not turn.spent() and any(consumer.room > 0 for consumer in active):
                    return False
                break
            at = taken
        if at < piece_end:
            break
    turn.bytes_left -= looked_bytes
    return True


def _hand_out(
    subscription: Subscription,
    view: View,
    turn: Turn,
    first: int,
    end: int,
    group: int,
    batch_first: int,
    batch: Batch,
    active: list[Consumer],
) -> int:
    """A run of one group, or of none, to its owner or to the next consumer. Up to where; `first` if nobody can."""
    consumer = (view.owners.get(group) or subscription.groups.holder(group, view)) if group else None
    if consumer is None:
        consumer = _next(view, active)
        if consumer is None or turn.spent():
            return first
    if group:
        subscription.groups.known.put(first, end, group)
        if consumer.view is view:
            view.owners[group] = consumer
    if consumer.room > 0 and not (group and consumer.assigned):
        if turn.spent():
            return first
        end = turn.give(subscription, consumer, first, min(end, first + consumer.room), batch_first, batch)
    elif len(consumer.assigned) >= _ASSIGNED_SPANS_MAX:
        return first
    else:  # later ones of a group never overtake those that wait
        subscription.assign(consumer, first, end)
    view.take(first, end)
    return end


def _run_of_group(groups: list[int], at: int, end: int) -> tuple[int, int]:
    group = groups[at]
    return group, next((n for n in range(at + 1, end) if groups[n] != group), end)


def _next(view: View, active: list[Consumer]) -> Consumer | None:
    """Whose turn it is, among those that have room."""
    for _ in range(len(active)):
        consumer = active[view.turn % len(active)]
        view.turn += 1
        if consumer.room > 0:
            return consumer
    return None


def _pieces(wanted: Mask, alive: Mask, first: int) -> list[tuple[int, int, bool]]:
    """Runs of wanted and of unwanted messages; those that are not alive are in none."""
    pieces: list[tuple[int, int, bool]] = []
    cuts = np.flatnonzero((wanted[1:] != wanted[:-1]) | (alive[1:] != alive[:-1])) + 1
    at = 0
    for stop in (*cuts.tolist(), len(wanted)):
        if alive[at]:
            pieces.append((first + at, first + stop, bool(wanted[at])))
        at = stop
    return pieces


def earliest_expiry_ms(batch: Batch, ttl_ms_max: int) -> int:
    """When the first message of a batch expires, where none lives longer than `ttl_ms_max`; 0 for never."""
    latest_ms = batch.created_ms + ttl_ms_max if ttl_ms_max else 0
    return min(batch.expiry_first_ms or latest_ms, latest_ms or batch.expiry_first_ms)


def expired_runs(batch: Batch, first: int, end: int, now_ms: int, ttl_ms_max: int = 0) -> list[Range]:
    """The runs of [first, end), by index, whose time to live is over."""
    if not 0 < earliest_expiry_ms(batch, ttl_ms_max) <= now_ms:
        return []
    if ttl_ms_max and batch.created_ms + ttl_ms_max <= now_ms:
        return [(first, end)]
    if 0 < batch.expiry_last_ms <= now_ms:
        return [(first, end)]
    return runs_of([index for index in range(first, end) if 0 < expiry_ms(batch, index) <= now_ms])


def expiry_ms(batch: Batch, index: int) -> int:
    """When one message expires; 0 for never."""
    try:
        return decode_headers(batch.record(index)[0]).expires_at_ms
    except BadBatch:
        return 0
