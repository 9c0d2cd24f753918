"""A thread with a queue, made before anything has to be done; and the places where a fault test can step in."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from clarion.instruments import Registry

QUEUE_MAX = 1_000
_logger = logging.getLogger("clarion.events")


class Worker:
    """A thread that does one thing after the other; what does not fit its queue is left out, and said to be."""

    def __init__(self, name: str) -> None:
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(QUEUE_MAX)
        self._thread = threading.Thread(target=self._run, name=f"clarion-events-{name}", daemon=True)
        self.fault: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def do(self, work: Callable[[], None]) -> bool:
        try:
            self._queue.put_nowait(work)
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception as error:  # the next one may do better
                self.fault = error
                _logger.exception("%s failed", self._thread.name)


class Points:
    """Test points of a pair, one per step."""

    def __init__(self, registry: Registry) -> None:
        point = registry.test_point
        self.before_store = point("events.pair.before_store", meaning="a partner's group is about to be stored")
        self.after_store = point("events.pair.after_store", meaning="a partner's group is durable, not answered")
        self.before_note_kept = point("events.pair.before_note_kept", meaning="a partner's note is about to be stored")
        self.after_note_kept = point("events.pair.after_note_kept", meaning="a partner's note is durable, not answered")
        self.before_send = point("events.pair.before_send", meaning="a message is about to go to the partner")
        self.before_lease = point("events.pair.before_lease", meaning="the witness is about to be asked")
        self.after_lease = point("events.pair.after_lease", meaning="the witness has answered, nobody knows it yet")
        self.before_remember = point("events.pair.before_remember", meaning="a state is about to be made durable")
        self.before_start_replay = point("events.pair.before_start_replay", meaning="replay is about to begin")
        self.before_stop_replay = point("events.pair.before_stop_replay", meaning="replay is about to end")
        self.before_give_back = point("events.pair.before_give_back", meaning="events are about to be given back")
        self.before_apply = point("events.pair.before_apply", meaning="what the partner did is about to be recorded")
        self.after_apply = point("events.pair.after_apply", meaning="what the partner did is recorded, not answered")
        self.before_forget = point("events.pair.before_forget", meaning="what was given back is about to be forgotten")
