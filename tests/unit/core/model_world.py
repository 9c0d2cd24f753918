"""Random lives of a message manager: every step does something to the real state and to the naive model.

Each seed has a world of its own: which features occur, how often, how large things are. A step does what a host does,
entry by entry; `World.run` compares after each of them (`model_checks`), and tells the seed and the last steps when
something is wrong, so that it can be played again.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

from clarion.core import sift
from clarion.core.destination import QUEUE, TOPIC, Destination
from clarion.core.entries import Create, Drop, Kind, Ranges, Retain, Subscribe, Unsubscribe
from clarion.core.subscription import Subscription
from tests.unit.core.model import SELECTORS, ModelSubscription, Range
from tests.unit.core.model_checks import check_all, check_destination, check_readable
from tests.unit.core.model_host import Record
from tests.unit.core.model_passing import Passing
from tests.unit.core.model_sending import PRODUCERS
from tests.unit.core.model_turns import Client, Purse


class World(Passing):
    """One random life."""

    def __init__(self, seed: int, source: random.Random | None = None) -> None:
        chance = source or random.Random(seed)
        self.seed = seed
        super().__init__(chance, chance.choice([2_560, 4_096, 65_536]), chance.choice([3_000, 1 << 30]))
        self.story: deque[str] = deque(["begin"], maxlen=50)
        self.features = {name for name in FEATURES if chance.random() < 0.5}
        self.depth_max = chance.choice([5, 20, 60])
        self.deliveries_max = chance.choice([0, 2, 3])
        self.expired_die = chance.random() < 0.5
        self.sync_chance = chance.choice([0.2, 0.6, 1.0])
        self.mark_messages = chance.choice([7, 100])
        self.ttl_ms = chance.choice([1_000, 4_000]) if "expiry" in self.features and chance.random() < 0.3 else 0
        self.names = 0
        self.create(QUEUE, "_DMQ")
        for kind in chance.choice([(QUEUE, TOPIC), (TOPIC, QUEUE), (QUEUE, QUEUE), (TOPIC, TOPIC)]):
            made = self.create(kind, f"d{self.names}")
            for _ in range(chance.randint(1, 3) if kind == TOPIC else 0):
                self.subscribe(made)
        self.sync()
        self.steps = [name for name, weight, feature in STEPS for _ in range(weight) if self._has(feature)]

    def _has(self, feature: str) -> bool:
        return not feature or feature in self.features

    def run(self, steps: int) -> None:
        """So many random steps."""
        self.play(self._any() for _ in range(steps))

    def _any(self) -> str:
        lonely = not self.clients and self.random.random() < 0.3
        return "arrive" if lonely else self.random.choice(self.steps)

    def play(self, names: Iterable[str]) -> None:
        """These steps, compared one by one."""
        usual, sift._ASSIGNED_SPANS_MAX = sift._ASSIGNED_SPANS_MAX, 2 if "narrow" in self.features else 16_384
        try:
            for step, name in enumerate(names):
                self.story.append(f"{step} {name}")
                getattr(self, name)()
                if self.random.random() < self.sync_chance:
                    self.sync(
                        self.random.choice([len(self.log), self.random.randint(self.durable_count, len(self.log))])
                    )
                self.let_go()
                for identity in sorted(self.touched):
                    check_destination(self, identity)
                self.touched.clear()
                if step % 50 == 49:
                    check_all(self)
            self.sync()
            self.sync()
            check_all(self)
            check_readable(self)
        except Exception as error:
            story = "\n".join(self.story)
            raise AssertionError(f"seed {self.seed}, after these steps:\n{story}\n{error!r}") from error
        finally:
            sift._ASSIGNED_SPANS_MAX = usual

    def tell(self, *facts: object) -> None:
        """Say more about the present step."""
        self.story[-1] += " " + " ".join(map(str, facts))

    # --- destinations and subscriptions ---------------------------------------------------------------

    def create(self, kind: str, name: str) -> Destination:
        self.names += 1
        identity = self.state.next_destination
        self.write(Kind.CREATE, Create(identity, kind, name, 1 << 40))
        return self.state.destinations[identity]

    def come_and_go(self) -> None:
        """A destination is dropped, with all that is in it, and another one has its name."""
        victims = [one for one in self.state.destinations.values() if one.name == "again"]
        if not victims:
            self.create(self.random.choice([QUEUE, TOPIC]), "again")
            return
        gone = victims[0]
        if gone.has_consumers():
            for client in [one for one in self.clients.values() if one.destination == gone.identity]:
                self.end_all(client)
        self.write(Kind.DROP, Drop(gone.identity))
        self.dying = [one for one in self.dying if one[0] is not gone]

        def durable() -> None:
            for page in list(gone.pages):
                gone.pages.free(page)
                self.release(page.position, page.live)
                self.cache.drop(gone.identity, page.first)
            for staged in list(gone.stages):
                self.release(staged.position, staged.span)
            for position, span in gone.dropped:
                self.release(position, span)

        self.after(durable)
        self.create(self.random.choice([QUEUE, TOPIC]), "again")

    def subscribe(self, destination: Destination | None = None) -> None:
        """A durable subscription, from now on or from what is retained on."""
        destination = destination or self.some_destination()
        if destination.kind == QUEUE or len(destination.subscriptions) > 3:
            return
        start = destination.tail
        if self.random.random() < 0.5:
            kept = destination.retained_from or destination.floor()
            start = self.random.randint(min(kept, destination.tail), destination.tail)
        selector = self.random.choice(list(SELECTORS)) if "selectors" in self.features else ""
        self.names += 1
        shared = self.random.random() < 0.7
        identity = destination.next_subscription
        if self.random.random() < 0.3 and "plain" in self.features:
            entry = Subscribe(destination.identity, identity, "", shared, start, selector)
            self._subscribe_plain(destination, entry)
            return
        entry = Subscribe(destination.identity, identity, f"s{self.names}", shared, start, selector)
        self.write(Kind.SUBSCRIBE, entry)

    def _subscribe_plain(self, destination: Destination, entry: Subscribe) -> None:
        made = destination.add_subscription(
            "", durable=False, shared=entry.shared, start=entry.start, selector=entry.selector
        )
        self.live.add(ModelSubscription(entry, destination.kind, self._index, durable=False))
        self._attach(destination, made, Purse(10, 1_000, 20))

    def unsubscribe(self) -> None:
        destination = self.some_destination()
        idle = [one for one in destination.subscriptions.values() if one.durable and not one.consumers]
        if destination.kind == QUEUE or not idle:
            return
        gone = self.random.choice(idle)
        self.write(Kind.UNSUBSCRIBE, Unsubscribe(destination.identity, gone.identity))
        self.touched.add(destination.identity)
        self.after(lambda: self.free(destination, [(1, destination.tail)]))

    # --- consuming ------------------------------------------------------------------------------------

    def _attach(
        self, destination: Destination, subscription: Subscription, purse: Purse, held: Sequence[Range] = ()
    ) -> Client | None:
        selector = subscription.selector
        if destination.kind == QUEUE and "selectors" in self.features:
            selector = self.random.choice(list(SELECTORS))
        ignored = 0
        if not subscription.shared:
            if any(not self.clients[consumer].parted for consumer in subscription.consumers):
                return None
            ignored = self.random.choice([0, PRODUCERS[0]]) if "no_local" in self.features else 0
        visibility_ms = self.random.choice([0, 700]) if "visibility" in self.features else 0
        self.touched.add(destination.identity)
        self.tell(destination, subscription.identity, repr(selector), held)
        return self.attach(
            destination, subscription, selector, purse, held=held, visibility_ms=visibility_ms, ignored=ignored
        )

    def _some_subscription(self) -> tuple[Destination, Subscription] | None:
        destination = self.some_destination(dead=0.1)
        known = [one for one in destination.subscriptions.values() if one.durable or one.shared]
        return (destination, self.random.choice(known)) if known else None

    def _purse(self) -> Purse:
        choose = self.random.choice
        return Purse(choose([1, 10, 100]), choose([1, 500, 100_000]), choose([3, 20, 1_000]))

    def arrive(self) -> None:
        found = self._some_subscription()
        if len(self.clients) < 6 and found is not None:
            purse = self._purse()
            self._attach(*found, purse)
            if self.random.random() < 0.2:  # a consumer of a pattern: one credit, several destinations
                other = self._some_subscription()
                if other is not None and other[0] is not found[0]:
                    self._attach(*other, purse)

    def come_back(self) -> None:
        """Somebody whose connection or server was gone, or seems to be, and holds something."""
        known = [*self.ghosts, *(client for client in self.clients.values() if client.holds)]
        if not known:
            return
        ghost = self.random.choice(known)
        destination = self.state.destinations.get(ghost.destination)
        if ghost in self.ghosts:
            self.ghosts.remove(ghost)
        if destination is None:
            return
        subscription = destination.subscriptions.get(ghost.subscription.identity)
        if subscription is None or subscription.name != ghost.subscription.entry.name:
            return
        owed = self.model_of(subscription, destination).owed
        assert all(n < subscription.cursor for n in ghost.holds if n in owed), "it was delivered once"
        held = self.some_of(ghost.holds)
        if self.random.random() < 0.2:
            held += [(self.random.randint(1, destination.tail), 1 << 62)]
        client = self._attach(destination, subscription, self._purse(), held)
        if client is not None and ghost.consumer in self.clients:
            ghost.holds -= client.holds
            self.leave_if_done(ghost)

    def turn(self) -> None:
        known = [one for one in self.state.destinations.values() if one.has_consumers()]
        if known:
            destination = self.random.choice(known)
            self.dispatch(destination, self.random.choice([1, 300, 1 << 20, 1 << 20]))

    def more_credit(self) -> None:
        known = list(self.clients.values())
        known = [one for one in known if one.consumer.room <= 0 and not one.parted] or known
        if known:
            client = self.random.choice(known)
            client.consumer.credit.paused = False
            messages, size = self.random.choice([(1, 10), (20, 1_000), (20, 2_000), (100, 100_000)])
            purse = client.purse
            purse.credit.add(messages, size)
            purse.messages, purse.size = purse.messages + messages, purse.size + size
            starved, purse.credit.starved = purse.credit.starved, set()
            for identity in sorted(starved & self.state.destinations.keys()):
                self.dispatch(self.state.destinations[identity], 1 << 20)

    def pause(self) -> None:
        client = self.some_client()
        if client is not None:
            client.consumer.credit.paused = not client.consumer.credit.paused

    def acknowledge(self) -> None:
        client = self.some_client(holding=True)
        if client is not None:
            ranges = self.some_of(self.free_of(client))
            if self.random.random() < 0.1:
                ranges.append((self.random.randint(1, 10), self.random.randint(10, 1 << 40)))
            self.tell(client, ranges)
            self.confirm(client, ranges)

    def reject(self) -> None:
        client = self.some_client(holding=True)
        if client is not None:
            ranges = self.some_of(self.free_of(client))
            delay_ms = self.random.choice([0, 0, 500, 1_500]) if "delays" in self.features else 0
            self.tell(client, ranges, delay_ms)
            self.give_back(client, ranges, self.random.choice(["", "no"]), delay_ms)
            self.leave_if_done(client)

    def end_all(self, client: Client) -> None:
        """All consumers that share a credit end together."""
        for one in list(client.purse.clients):
            self.end(one)

    def die(self) -> None:
        client = self.some_client()
        if client is not None:
            self.tell(client)
            self.end_all(client)

    def leave(self) -> None:
        client = self.some_client()
        if client is not None:
            for one in list(client.purse.clients):
                unseen = self.some_of(one.holds) if self.random.random() < 0.5 else []
                self.tell(one, unseen)
                self.part(one, unseen)

    def begin_again(self) -> None:
        client = self.some_client()
        if client is not None:
            self.tell(client)
            self.restart(client)

    # --- administration -------------------------------------------------------------------------------

    def discard(self) -> None:
        destination = self.some_destination()
        first = self.random.randint(1, destination.tail)
        end = self.random.choice([first + 1, first + 5, 1 << 62])
        ranges = [(first, end)] if self.random.random() < 0.8 else [(1, destination.tail)]
        self.tell(destination, ranges)
        self.touched.add(destination.identity)
        self.write(Kind.DISCARD, Ranges(destination.identity, 0, ranges))
        self.after(lambda: self.free(destination, ranges))

    def retain_some(self) -> None:
        """Retention begins, moves on, or ends."""
        destination = self.some_destination()
        floor = min(destination.floor(), destination.visible)
        if not destination.retained_from:
            first = floor
        else:
            first = self.random.choice(
                [0, self.random.randint(destination.retained_from, max(floor, destination.retained_from))]
            )
        self.tell(destination, first)
        self.touched.add(destination.identity)
        self.write(Kind.RETAIN, Retain(destination.identity, first))
        self.after(lambda: self.free(destination, [(1, destination.tail)]))

    # --- upkeep and crashes ---------------------------------------------------------------------------

    def sync_all(self) -> None:
        self.sync()

    def refine(self) -> None:
        for destination in self.state.destinations.values():
            for position, size in destination.refine():
                self.after(partial(self.release, position, size))

    def compact(self) -> None:
        destination = self.random.choice(list(self.state.destinations.values()))
        pages = [page for page in destination.pages if self.is_old(page.position)]
        if pages:
            self.move(destination, self.random.choice(pages))
            if self.random.random() < 0.1:
                self.sync()
                check_readable(self)
        staged = list(destination.stages)
        if staged:
            self.move_staged(destination, self.random.choice(staged))

    def checkpoint_some(self) -> None:
        self.checkpoint(self.random.choice([1, 2, 100]))

    def crash_now(self) -> None:
        """The process is gone, and with it what was not durable."""
        if self.random.random() < 0.5:
            self.sync()
        producers = {key: one.producers.dump() for key, one in self.state.destinations.items()}
        if self.durable_count != len(self.log):
            producers.clear()  # some of them never were
        for client in self.clients.values():
            self.ghosts.append(client)
        del self.ghosts[:-10]
        self.clients.clear()
        self.dying.clear()
        self.unguarded.clear()
        self.group_last.clear()
        self.open.clear()
        self.crash(self.random.random() < 0.3, self._damage)
        for destination in self.state.destinations.values():
            self.free(destination, [(1, destination.tail)])
        check_all(self)
        check_readable(self)
        for key, known in producers.items():
            assert self.state.destinations[key].producers.dump() == known, "doubles would not be known"
        self.prepared = list(self.live.prepared)
        for transaction in self.state.transactions.undecided():
            self.decide([transaction], self.changes([transaction], committed=False), committed=False)
        for destination in self.state.destinations.values():
            for subscription in destination.subscriptions.values():
                self.bury_worn(destination, subscription, [(1, destination.tail)])

    def rot_some(self) -> None:
        """One bit of a body that somebody still needs flips."""
        bodies = [record for record in self.log[: self.durable_count] if record.body and record.messages]
        if bodies:
            self.rot(self.random.choice(bodies))

    def _damage(self, records: list[Record]) -> list[Record]:
        if "damage" in self.features and records and self.random.random() < 0.3:
            return self.random.sample(records, 1)
        return []


FEATURES = (
    "priorities", "groups", "expiry", "delays", "selectors", "no_local", "visibility", "transactions", "plain",
    "retention", "damage", "compaction", "discards", "drops", "dead", "narrow",
)  # fmt: skip
STEPS = (
    ("publish", 24, ""),
    ("turn", 24, ""),
    ("acknowledge", 18, ""),
    ("reject", 5, ""),
    ("arrive", 4, ""),
    ("die", 1, ""),
    ("leave", 1, ""),
    ("begin_again", 2, ""),
    ("come_back", 2, ""),
    ("more_credit", 14, ""),
    ("pause", 1, ""),
    ("tick", 5, ""),
    ("sync_all", 5, ""),
    ("subscribe", 1, ""),
    ("unsubscribe", 1, ""),
    ("undertake", 4, ""),
    ("refine", 1, ""),
    ("checkpoint_some", 4, ""),
    ("crash_now", 1, ""),
    ("close_producer", 1, ""),
    ("begin", 5, "transactions"),
    ("produce", 7, "transactions"),
    ("consume", 9, "transactions"),
    ("commit", 5, "transactions"),
    ("roll_back", 2, "transactions"),
    ("prepare", 4, "transactions"),
    ("decide_prepared", 4, "transactions"),
    ("resend", 2, "dead"),
    ("discard", 1, "discards"),
    ("retain_some", 1, "retention"),
    ("rot_some", 1, "damage"),
    ("compact", 6, "compaction"),
    ("come_and_go", 1, "drops"),
)
