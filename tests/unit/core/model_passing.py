"""Time passes in the model: what is due is shown, what is late comes back, what is over dies."""

from __future__ import annotations

from clarion import ids
from clarion.core.destination import EXPIRY_STEP_MS, Destination
from clarion.core.entries import Change, Due, Kind, Transfer, runs_of
from clarion.core.sift import expired_runs, expiry_ms
from clarion.core.subscription import Subscription
from clarion.wire.batch import Batch, encode
from tests.unit.core.model import DYING, IN_FLIGHT, LATER, Message, Range
from tests.unit.core.model_sending import Sending
from tests.unit.core.model_turns import DEAD

_MOVED_BY = 5 << ids.SEQUENCE_BITS
"""The producer of messages that go from one destination to another."""


class Passing(Sending):
    """What happens by itself."""

    expired_die = True

    # --- time -----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Time goes on, and what waits for it happens."""
        self.now_ms += self.random.choice([1, 30, 200, 1_000])
        self.tell(self.now_ms)
        for destination in list(self.state.destinations.values()):
            self._show_due(destination)
            self._take_back_overdue(destination)
            for subscription in destination.subscriptions.values():
                self._come_due(destination, subscription)
            if 0 < destination.expiry_next_ms <= self.now_ms:
                self._expire(destination)

    def _show_due(self, destination: Destination) -> None:
        model = self.live.destinations[destination.identity]
        waiting = sorted(
            (stage.due_ms, number, len(stage.messages))
            for number, stage in model.stages.items()
            if not stage.transaction and stage.due_ms <= self.now_ms
        )
        limit = self.random.choice([10, 1_000])
        expected, messages = [], 0
        for _, number, count in waiting:
            if messages < limit:
                expected.append(number)
                messages += count
        due = destination.stages.due(self.now_ms, limit)
        assert [staged.number for staged in due] == expected
        if not due:
            return
        self.touched.add(destination.identity)
        if self.random.random() < 0.2:
            destination.stages.not_yet(due)
            return
        visible = [(staged.number, staged.number + 1) for staged in due]
        change = Change(destination.identity, visible=visible, first=destination.tail)
        self.write(Kind.DUE, Due(self.now_ms, change))
        self.after_shown(destination)
        self.after(lambda: self.free(destination, [(change.first, destination.tail)]))  # all may be for nobody

    def _take_back_overdue(self, destination: Destination) -> None:
        for client in [one for one in self.clients.values() if one.destination == destination.identity]:
            overdue = client.consumer.overdue(self.now_ms)
            model = client.subscription
            expected = {
                sequence
                for sequence, deadline in client.deadlines.items()
                if deadline <= self.now_ms and model.place.get(sequence) == (IN_FLIGHT, client)
            }
            assert {s for first, end in overdue for s in range(first, end)} == expected, "visibility"
            client.deadlines = {s: at for s, at in client.deadlines.items() if at > self.now_ms}
            if overdue:
                self.give_back(client, overdue, "too late")
                self.leave_if_done(client)

    def _come_due(self, destination: Destination, subscription: Subscription) -> None:
        model = self.model_of(subscription, destination)
        due = [s for s, (why, at) in model.place.items() if why == LATER and isinstance(at, int) and at <= self.now_ms]
        assert subscription.come_due(self.now_ms) == bool(due)
        for sequence in due:
            self.touched.add(destination.identity)
            model.ready(sequence)

    def _expire(self, destination: Destination) -> None:
        """Everything whose time is over leaves, except what is in flight, reserved or being buried already."""
        due = [(first, end) for first, end, step in destination.expiring if step <= self.now_ms]
        for first, end in due:
            self._expire_run(destination, first, min(end, destination.visible))
        destination.expiry_next_ms = min((step for _, _, step in destination.expiring), default=0)

    def _expire_run(self, destination: Destination, first: int, end: int) -> None:
        at = first
        while at < end:
            found = self.fetch(destination, at)
            if found is None:
                following = destination.pages.following(at, 1)
                stop = following[0].first if following else end
                destination.expiring.take(at, stop)
                at = stop
                continue
            batch_first, batch = found
            low, high = at - batch_first, min(end - batch_first, batch.count)
            ttl_ms = 0 if destination.identity == DEAD else self.ttl_ms
            gone = [(batch_first + f, batch_first + e) for f, e in expired_runs(batch, low, high, self.now_ms, ttl_ms)]
            busy = self._bury_idle(destination, gone)
            times = [
                *(expiry_ms(batch, index) for index in range(low, high)),
                batch.created_ms + ttl_ms if ttl_ms else 0,
            ]
            still = [time_ms for time_ms in times if time_ms > self.now_ms]
            destination.expiring.take(at, batch_first + high)
            if busy or still:
                later = self.now_ms + EXPIRY_STEP_MS
                destination.expect_expiry(at, batch_first + high, later if busy else max(min(still), later))
            at = batch_first + high

    def _bury_idle(self, destination: Destination, gone: list[Range]) -> bool:
        busy = False
        for subscription in destination.subscriptions.values():
            model = self.model_of(subscription, destination)
            idle = sorted(s for s in model.within(gone) if model.place.get(s, ("", 0))[0] != IN_FLIGHT)
            busy |= len(idle) != len(model.within(gone))
            if idle:
                self.bury(destination, subscription, runs_of(idle), "expired")
        return busy

    # --- the dead -------------------------------------------------------------------------------------

    def undertake(self) -> None:
        """What is dying is dead now: in one entry it is in the dead message queue, and no longer where it was."""
        if not self.dying:
            return
        destination, subscription, ranges, reason = self.dying.pop(self.random.randrange(len(self.dying)))
        if destination.subscriptions.get(subscription.identity) is not subscription:
            return
        model = self.model_of(subscription, destination)
        left = [s for s in model.within(ranges) if model.place.get(s) == (DYING, None)]
        if not left:
            return
        runs = runs_of(sorted(left))
        if destination.identity == DEAD or (reason == "expired" and not self.expired_die):
            self.confirm_ranges(destination, subscription, runs)
            return
        messages = self.live.destinations[destination.identity].messages
        for first, end in runs:
            if self.fetch(destination, first) is None:
                self.touched.add(destination.identity)
                subscription.come_back(first, end)  # dispatch finds out that it is lost
                for sequence in range(first, end):
                    model.ready(sequence)
                continue
            same = messages[first].priority
            end = next((s for s in range(first, end) if messages[s].priority != same), end)
            self.transfer(self.state.destinations[DEAD], destination, subscription, (first, end), 0)
        rest = runs_of([s for s in sorted(left) if model.place.get(s) == (DYING, None)])
        if rest:
            self.dying.append((destination, subscription, rest, reason))

    def transfer(
        self, target: Destination, source: Destination, subscription: Subscription, run: Range, only: int
    ) -> None:
        """Messages go from one destination to another, without groups, times and properties."""
        messages = self.live.destinations[source.identity].messages
        moved = [
            Message(_MOVED_BY + n, b"", one.body, one.priority, 0, 0, self.now_ms, _MOVED_BY, "", 0)
            for n, one in enumerate(messages[sequence] for sequence in range(*run))
        ]
        encoded = bytes(
            encode(
                str(target).encode(),
                _MOVED_BY,
                [message.body for message in moved],
                priority=moved[0].priority,
                created_ms=self.now_ms,
            )
        )
        expiry_ms = self.now_ms + self.ttl_ms if self.ttl_ms and target.identity != DEAD else 0
        entry = Transfer(
            target.identity, target.tail, len(moved), self.now_ms, moved[0].priority, expiry_ms, 0, only,
            source.identity, subscription.identity, [run],
        )  # fmt: skip
        self.touched |= {target.identity, source.identity}
        self.write(Kind.TRANSFER, entry, encoded, moved)
        self.cache.published(target.identity, entry.first, False, entry.first, Batch(encoded))
        self.after_shown(target)
        self.after(lambda: self.free(source, [run]))

    def resend(self) -> None:
        """A dead message goes back, for all or for one subscription."""
        source = self.state.destinations[DEAD]
        model = self.live.destinations[DEAD].subscriptions[1]
        ready = [s for s in model.owed if s not in model.place and s < source.visible]
        if ready:
            sequence = self.random.choice(ready)
            target = self.some_destination()
            only = self.random.choice([0, *target.subscriptions])
            self.transfer(target, source, source.subscriptions[1], (sequence, sequence + 1), only)
