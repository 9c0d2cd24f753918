"""Host a of a pair: every line that you type is an event, which two hosts have when its id is printed.

    clarion events serve --config b.toml        # host b, in another terminal
    python host_a.py                            # host a

Kill host a (kill -9) while its desk is out of order (--log /dev/null/a): what it could not deliver is in b.jsonl some
seconds later, under the same ids. Start it again: it takes its events back. On two real hosts the addresses differ, and
the witness is something that both see.
"""

from __future__ import annotations

import argparse
import sys

from clarion.events import EventSystem, PairSettings
from clarion.events.recipients import LogFile


def main() -> None:
    parser = argparse.ArgumentParser(description="Host a of a pair: every line of stdin is an event.")
    parser.add_argument("--dir", default="a-events", help="persistent memory")
    parser.add_argument("--log", default="a.jsonl", help="the desk: where events go")
    parser.add_argument("--listen", default="127.0.0.1:7771", help="where b finds us")
    parser.add_argument("--partner", default="127.0.0.1:7772", help="where b listens")
    parser.add_argument("--witness", default="file:witness", help="who says which host may act: both see it")
    given = parser.parse_args()

    partner = PairSettings(
        partner_name="b", partner=given.partner, listen=given.listen, witness=given.witness, lease_ms=1_000
    )
    with EventSystem.open(given.dir, recipients=[LogFile(given.log, name="desk")], name="a", partner=partner) as events:
        events.ready()
        print("ready", flush=True)
        for line in sys.stdin:
            id_ = events.emit("typed", source="keyboard", data={"text": line.rstrip("\n")})
            print(id_, (events.pair_status() or {}).get("state", ""), flush=True)


if __name__ == "__main__":
    main()
