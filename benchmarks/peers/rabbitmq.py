"""RabbitMQ: one quorum queue on one node, persistent messages, publisher confirms, manual acknowledgements.

Durability: a quorum queue syncs its write-ahead log before the confirm. Acknowledgements go through the same log;
they have no reply, so the clock stops after a synchronous command that follows them on the same channel.

Contestants: pika's BlockingConnection, which waits for each confirm (what its documentation shows), and pika's
SelectConnection with up to 256 unconfirmed messages. Both consumers have a prefetch of 256 and acknowledge each
message. The version is Debian's, not the newest (see README.md).

The node is private to the run: own name, cookie, directories and ports, with a name server (epmd) of its own that is
ended with it. The packaged service is not touched.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from benchmarks.contestant import Peer, latency_of
from benchmarks.environment import Unavailable, debian_program
from benchmarks.peers.base import ServerPeer
from benchmarks.processes import HOST, Server
from benchmarks.worker import Gate

_PREFETCH = 256
_INSTALLED = Path("/usr/lib/rabbitmq/lib")
_DURABILITY = "fsync of the quorum log before confirm"


def _server_program() -> Path:
    """The plain start script: the one on the path changes user and reads the system's settings."""
    debian_program("rabbitmq-server", "rabbitmq-server")
    found = sorted(_INSTALLED.glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    if not found:
        raise Unavailable("the Debian package rabbitmq-server has no start script where it is expected")
    return found[-1]


class RabbitMQ(ServerPeer):
    def version(self) -> str:
        return _server_program().parent.parent.name.removeprefix("rabbitmq_server-")

    def prepare(self) -> None:
        super().prepare()
        _server_program()
        debian_program("epmd", "erlang-base")

    def start(self, directory: Path) -> None:
        self.directory = directory
        port, distribution_port, names_port = self.ports(3)
        self.client["port"] = port
        config = directory / "rabbitmq.conf"
        config.write_text(f"listeners.tcp.1 = {HOST}:{port}\nlog.file.level = warning\n")
        (directory / "plugins").write_text("[].\n")
        environment = {
            "HOME": str(directory),
            "RABBITMQ_NODENAME": "benchmark@localhost",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": str(names_port),
            "ERL_EPMD_ADDRESS": HOST,
        }
        names = [str(debian_program("epmd", "erlang-base")), "-port", str(names_port), "-address", HOST]
        self.servers.append(Server(names, directory / "epmd.log"))
        self.servers[-1].wait_for_port(names_port)
        self.servers.append(Server([_server_program()], directory / "rabbitmq.log", environment))
        self.servers[-1].wait_for_port(port)


def _blocking_channel(port: int, queue: str) -> tuple[Any, Any]:
    import pika

    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, port, heartbeat=0))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    return connection, channel


def consume(gate: Gate, *, port: int, queue: str, count: int, size: int, in_flight: int) -> dict[str, Any]:
    connection, channel = _blocking_channel(port, queue)
    channel.basic_qos(prefetch_count=_PREFETCH)
    got = 0

    def on_message(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        nonlocal got
        assert len(body) == size
        channel.basic_ack(method.delivery_tag)
        got += 1
        if got == count:
            channel.stop_consuming()

    channel.basic_consume(queue, on_message)
    gate.wait()
    channel.start_consuming()
    channel.queue_declare(queue, passive=True)  # its reply follows the acknowledgements
    times = gate.times(got)
    connection.close()
    return times


def produce(gate: Gate, *, port: int, queue: str, count: int, size: int, in_flight: int) -> dict[str, Any]:
    if in_flight > 1:
        return _produce_in_flight(gate, port, queue, count, size, in_flight)
    import pika

    connection, channel = _blocking_channel(port, queue)
    channel.confirm_delivery()
    body, properties = os.urandom(size), pika.BasicProperties(delivery_mode=2)
    gate.wait()
    for _ in range(count):
        channel.basic_publish("", queue, body, properties, mandatory=True)
    times = gate.times(count)
    connection.close()
    return times


def _produce_in_flight(gate: Gate, port: int, queue: str, count: int, size: int, in_flight: int) -> dict[str, Any]:
    """A window of unconfirmed messages, refilled as confirms arrive."""
    import pika

    body, properties = os.urandom(size), pika.BasicProperties(delivery_mode=2)
    sent = confirmed = 0
    times: dict[str, Any] = {}

    def refill(channel: Any) -> None:
        nonlocal sent
        while sent < count and sent - confirmed < in_flight:
            channel.basic_publish("", queue, body, properties)
            sent += 1

    def on_confirm(frame: Any, channel: Any) -> None:
        nonlocal confirmed
        assert isinstance(frame.method, pika.spec.Basic.Ack)
        tag = frame.method.delivery_tag  # multiple: everything up to the tag; else one message more
        confirmed = max(confirmed, tag) if frame.method.multiple else confirmed + 1
        if confirmed == count:
            times.update(gate.times(count))
            channel.connection.close()
        else:
            refill(channel)

    def on_channel(channel: Any) -> None:
        def on_confirms_on(_frame: Any) -> None:
            gate.wait()
            refill(channel)

        channel.confirm_delivery(lambda frame: on_confirm(frame, channel), on_confirms_on)

    connection = pika.SelectConnection(
        pika.ConnectionParameters(HOST, port, heartbeat=0),
        on_open_callback=lambda opened: opened.channel(on_open_callback=on_channel),
        on_close_callback=lambda closed, _reason: closed.ioloop.stop(),
    )
    connection.ioloop.start()
    return times


def measure_latency(gate: Gate, *, port: int, queue: str, count: int, size: int, in_flight: int) -> dict[str, float]:
    import pika

    connection, channel = _blocking_channel(port, queue)
    channel.confirm_delivery()
    body, properties = os.urandom(size), pika.BasicProperties(delivery_mode=2)
    gate.wait()
    samples = []
    for _ in range(count):
        before = time.perf_counter_ns()
        channel.basic_publish("", queue, body, properties, mandatory=True)
        samples.append(time.perf_counter_ns() - before)
    connection.close()
    return latency_of(samples, size)


def contestants() -> list[Peer]:
    return [
        RabbitMQ("RabbitMQ quorum, one at a time", _DURABILITY, {"in_flight": 1}),
        RabbitMQ("RabbitMQ quorum, 256 in flight", _DURABILITY, {"in_flight": 256}),
    ]
