"""A web service whose errors are events: it never waits for whoever reads them, and none is lost with the process.

    python examples/web_service.py --dir shop-events --log shop.jsonl --port 8080
    curl 'localhost:8080/pay?euro=20'           # paid
    curl 'localhost:8080/pay?euro=2000'         # an event that the program emits: payment.declined
    curl 'localhost:8080/share?among=0'         # a bug: the log record of the exception becomes an event
    curl 'localhost:8080/recount'               # a thread that dies: its exception becomes an event

Events are recorded in --dir before the answer goes out. They are delivered to --log, and to a Clarion server with
--server clarion://HOST:PORT, now or, if that is not there, when it comes back; also after a kill -9 of this service.
"""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from clarion.events import EventHandler, EventSystem, install_excepthook, install_faulthandler
from clarion.events.recipients import ClarionServer, LogFile

EURO_MAX = 1_000
logger = logging.getLogger("shop")


class Shop(ThreadingHTTPServer):
    """What its handlers share is the event system."""

    def __init__(self, address: tuple[str, int], events: EventSystem) -> None:
        super().__init__(address, Handler)
        self.events = events

    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        # Called for any exception that a handler did not catch. It is logged as everywhere; `main` has told logging
        # that errors are events.
        logger.exception("a request of %s failed", client_address[0])


class Handler(BaseHTTPRequestHandler):
    server: Shop

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        given = {name: values[0] for name, values in parse_qs(url.query).items()}
        match url.path:
            case "/pay":
                self.pay(int(given["euro"]))
            case "/share":
                self.answer(200, f"{EURO_MAX // int(given['among'])} euro each")
            case "/recount":
                threading.Thread(target=recount, name="recount").start()
                self.answer(202, "counting")
            case _:
                self.answer(404, "there is /pay, /share and /recount")

    def pay(self, euro: int) -> None:
        if euro <= EURO_MAX:
            self.answer(200, "paid")
            return
        # When emit returns the event is on the disk, whatever happens to this process, its network or its disk space.
        id_ = self.server.events.emit(
            "payment.declined", source="shop/till", severity="warning", data={"euro": euro, "euro_max": EURO_MAX}
        )
        self.answer(402, f"declined, see event {id_}")

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode() + b"\n")

    def log_message(self, format: str, *arguments: Any) -> None:
        logger.info(format, *arguments)


def recount() -> None:
    raise RuntimeError("the shelves do not add up")


def main() -> None:
    parser = argparse.ArgumentParser(description="A web service whose errors are events.")
    parser.add_argument("--dir", default="shop-events", help="persistent memory")
    parser.add_argument("--log", default="shop.jsonl", help="where all events are written, one on a line")
    parser.add_argument("--server", help="clarion://HOST:PORT, which gets what is an error or worse")
    parser.add_argument("--port", type=int, default=8080)
    given = parser.parse_args()

    recipients: list[object] = [LogFile(given.log)]
    if given.server:
        recipients.append(ClarionServer(given.server, filter="severity_level >= 40"))
    with EventSystem.open(given.dir, recipients=recipients) as events:
        install_faulthandler(events, events.path)  # last words of an earlier run that died of a fault
        install_excepthook(events)  # exceptions that nobody catches, in any thread
        logging.basicConfig(level=logging.INFO)
        logging.getLogger().addHandler(EventHandler(events, level=logging.ERROR))
        events.ready()
        with Shop(("127.0.0.1", given.port), events) as shop:
            signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=shop.shutdown).start())
            print(f"ready http://127.0.0.1:{shop.server_port}", flush=True)
            shop.serve_forever()


if __name__ == "__main__":
    main()
