"""A program that is interrupted (Ctrl-C) at moments of chance while it receives and confirms: `URL COUNT SEED`.

Each time it must leave its consumer, session and connection, soon. Prints how often it was interrupted.
"""

from __future__ import annotations

import faulthandler
import random
import signal
import sys
from types import FrameType

import clarion

ARMED_S_MAX = 0.003
STUCK_S_MAX = 30.0


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def receive(url: str, chance: random.Random) -> None:
    """Until it is interrupted: messages without end, each confirmed."""
    with clarion.sync.connect(url) as connection, connection.session() as session:
        session.send_many("interrupted", [b"x"] * 20)
        with session.receive("interrupted") as consumer:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00001, ARMED_S_MAX))
            while True:
                message = consumer.receive(timeout=0) or consumer.receive()
                if message is not None:
                    message.confirm_nowait()


def main(url: str, count: int, seed: int) -> None:
    chance = random.Random(seed)
    signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    for _ in range(count):
        faulthandler.dump_traceback_later(STUCK_S_MAX, exit=True)
        try:
            receive(url, chance)
        except KeyboardInterrupt:
            interrupted += 1
    faulthandler.cancel_dump_traceback_later()
    print(interrupted)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
