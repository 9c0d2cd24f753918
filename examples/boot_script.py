"""A boot script that has something to say before there is a network, a clock or a server to say it to.

    python examples/boot_script.py --dir boot-events --server clarion://logs.example.org:7750

What is emitted before `ready()` is recorded in the initialisation section and delivered first, in its order. If the
host loses power on its way up, the next boot delivers what the first one had to say, before its own events.
"""

from __future__ import annotations

import argparse
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

from clarion.events import EventSystem
from clarion.events.recipients import ClarionServer

PAUSE_S = 0.2


def check_root(events: EventSystem) -> None:
    """Something that can be wrong early, and that nobody would ever hear of."""
    options = next((line.split()[3] for line in Path("/proc/mounts").read_text().splitlines() if " / " in line), "")
    if "ro" in options.split(","):
        events.emit("boot.root.read-only", source="boot/disk", severity="critical", data={"options": options})


def wait_for_network(host: str, port: int) -> None:
    while True:
        try:
            socket.create_connection((host, port), timeout=1).close()
            return
        except OSError:
            time.sleep(PAUSE_S)


def main() -> None:
    parser = argparse.ArgumentParser(description="Emits events before the network is up.")
    parser.add_argument("--dir", default="boot-events", help="persistent memory")
    parser.add_argument("--server", default="clarion://127.0.0.1:7750")
    given = parser.parse_args()
    server = urlsplit(given.server)

    # One queue for all events, so that whoever reads it has them in their order.
    recipient = ClarionServer(given.server, destination="queue:boot")
    # A new event system is initialising: it records, and tries to deliver nothing.
    with EventSystem.open(given.dir, recipients=[recipient]) as events:
        kernel = Path("/proc/sys/kernel/osrelease").read_text().strip()
        events.emit("boot.started", source="boot", data={"kernel": kernel})
        check_root(events)
        print("waiting for the network", flush=True)
        began_s = time.monotonic()
        wait_for_network(server.hostname or "127.0.0.1", server.port or 7750)
        waited_s = time.monotonic() - began_s
        events.emit("boot.network.up", source="boot", severity="notice", data={"waited_s": round(waited_s, 1)})

        events.ready()  # now deliver; what was recorded so far goes first
        events.emit("boot.finished", source="boot")
        delivered = events.wait_until_delivered(60)
        print(
            "all delivered" if delivered else "recorded; whoever opens the directory next delivers the rest", flush=True
        )


if __name__ == "__main__":
    main()
