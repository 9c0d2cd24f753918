"""Kafka: one KRaft node, one partition, with a flush per appended batch and with its default.

Durability: `flush.messages=1` makes the broker sync the log after every append (one produce request's batch), before
the reply; the same is set for the offsets topic, so a committed offset is on disk too. By default Kafka leaves
syncing to the operating system and relies on replicas, of which one node has none: that line is for comparison.

Contestants: confluent-kafka (librdkafka, C), `acks=all`, the library's own batching (5 ms linger); a consumer that
takes up to 500 messages (the usual size of a poll), or up to 10,000, and commits their offset synchronously: the
commit's round trip and sync limit the first, and a crash redelivers up to 10,000 in the second. Latency is measured
without linger. Kafka's acknowledgement is a cursor: it cannot reject or redeliver a single message.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

from benchmarks.contestant import UNSYNCED, BenchmarkError, Peer, latency_of
from benchmarks.environment import maven_jars
from benchmarks.peers.base import ServerPeer
from benchmarks.processes import HOST, START_S_MAX, Server, free_ports
from benchmarks.worker import Gate

_VERSION = "4.0.0"
_DURABILITY = "fsync of each batch before ack"
_TURN_S = 1.0


def _java() -> list[str]:
    jars = maven_jars("org.apache.kafka", "kafka_2.13", _VERSION)
    return [shutil.which("java") or "java", "-Xmx1g", "-cp", f"{jars}/*"]


class Kafka(ServerPeer):
    flush_each = True

    def version(self) -> str:
        return _VERSION

    def prepare(self) -> None:
        super().prepare()
        _java()

    def start(self, directory: Path) -> None:
        self.directory = directory
        port, controller_port = free_ports(2)
        self.client["port"] = port
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HOST}:{controller_port}",
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(directory / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
        }
        if self.flush_each:
            settings["log.flush.interval.messages"] = "1"
        config = directory / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [*_java(), "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S_MAX, check=False)
        if done.returncode != 0:
            raise BenchmarkError(f"formatting the log directory ended with {done.returncode}: {done.stderr[-300:]}")
        self.servers.append(Server([*_java(), "kafka.Kafka", config], directory / "kafka.log"))
        self.servers[-1].wait_for_port(port)


class KafkaDefault(Kafka):
    flush_each = False


def _make_topic(port: int, queue: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": f"{HOST}:{port}"})
    for made in admin.create_topics([NewTopic(queue, num_partitions=1, replication_factor=1)]).values():
        made.result(START_S_MAX)


def _producer(port: int, queue: str, linger_ms: float) -> Any:
    """A producer that already knows the topic: the first send must not wait for metadata."""
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": f"{HOST}:{port}", "acks": "all", "linger.ms": linger_ms}
    producer = Producer(settings)
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline:
        topic = producer.list_topics(queue, timeout=START_S_MAX).topics[queue]
        if topic.error is None and topic.partitions:
            return producer
        time.sleep(0.05)
    raise BenchmarkError(f"topic {queue} did not appear")


def produce(gate: Gate, *, port: int, queue: str, count: int, size: int, commit: int) -> dict[str, Any]:
    producer = _producer(port, queue, linger_ms=5)
    body = os.urandom(size)
    confirmed = 0

    def on_delivery(error: Any, _message: Any) -> None:
        nonlocal confirmed
        assert error is None, error
        confirmed += 1

    gate.wait()
    for sent in range(count):
        while True:
            try:
                producer.produce(queue, body, on_delivery=on_delivery)
                break
            except BufferError:  # the library's queue is full: let it deliver
                producer.poll(0.01)
        if sent % 64 == 0:
            producer.poll(0)
    producer.flush()
    return gate.times(confirmed)


def _prime(consumer: Any, port: int, queue: str) -> None:
    """Pass one message through: a new topic's leader and group coordinator take a second to be found."""
    producer = _producer(port, queue, linger_ms=0)
    producer.produce(queue, b"primer")
    producer.flush()
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline:
        if messages := consumer.consume(1, timeout=_TURN_S):
            consumer.commit(message=messages[0], asynchronous=False)
            return
    raise BenchmarkError("the first message did not arrive")


def consume(gate: Gate, *, port: int, queue: str, count: int, size: int, commit: int) -> dict[str, Any]:
    from confluent_kafka import Consumer, TopicPartition

    _make_topic(port, queue)
    settings = {"bootstrap.servers": f"{HOST}:{port}", "group.id": queue, "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(queue, 0, 0)])
    _prime(consumer, port, queue)
    gate.wait()
    got = 0
    while got < count:
        messages = consumer.consume(min(commit, count - got), timeout=_TURN_S)
        for message in messages:
            assert message.error() is None and len(message.value()) == size
        if messages:
            consumer.commit(message=messages[-1], asynchronous=False)
        got += len(messages)
    times = gate.times(got)
    consumer.close()
    return times


def measure_latency(gate: Gate, *, port: int, queue: str, count: int, size: int, commit: int) -> dict[str, float]:
    _make_topic(port, queue)
    producer = _producer(port, queue, linger_ms=0)
    body = os.urandom(size)
    gate.wait()
    samples = []
    for _ in range(count):
        before = time.perf_counter_ns()
        producer.produce(queue, body)
        producer.flush()
        samples.append(time.perf_counter_ns() - before)
    return latency_of(samples, size)


def contestants() -> list[Peer]:
    return [
        Kafka("Kafka flush.messages=1, commits of 500", _DURABILITY, {"commit": 500}),
        Kafka("Kafka flush.messages=1, commits of 10,000", _DURABILITY, {"commit": 10_000}),
        KafkaDefault("Kafka default, commits of 10,000", f"{UNSYNCED}; no replica", {"commit": 10_000}),
    ]
