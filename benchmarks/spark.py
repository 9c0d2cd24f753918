"""Spark's source and sink beside a constant source and sink of the same schema, in the same session.

    python -m benchmarks.spark                     # some 6 minutes
    python -m benchmarks.spark --rows 500000 --rounds 1

The constant ones yield or drop the same Arrow batch again and again: what they reach is Spark's own limit on this
machine. `local[2]`, bodies of 100 bytes, a real server on the same two cores. Rounds take turns; printed are medians.

A batch read is timed as a whole, into Spark's `noop`. A streaming run takes everything that is there in micro-batches;
its rate is the median over its micro-batches but the first, of rows through the time of the trigger. The sink is fed by
the constant source in both cases, and what it has sent is counted at the server.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

import clarion
from benchmarks.contestant import BenchmarkError
from benchmarks.processes import ROOT, work_directory
from clarion.testing.server import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 3_000_000
BATCH_ROWS = 500_000
BODY_BYTES = 100
PARTITIONS = 2
ROUNDS = 3
RATIO_MIN = 0.6
"""What is promised."""
TOPIC = "topic:numbers"
COLUMNS = "destination,sequence,time,body"


@dataclass
class Bench:
    """One session, one server, and the rates that were reached."""

    spark: SparkSession
    url: str
    folder: Path
    rows: int
    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def note(self, what: str, who: str, rate: float) -> None:
        self.rates.setdefault(what, {}).setdefault(who, []).append(rate)

    # --- reading ------------------------------------------------------------------------------------

    def options(self, who: str) -> dict[str, str]:
        common = {"partitions": str(PARTITIONS), "maxRowsPerBatch": str(BATCH_ROWS)}
        if who == "constant":
            return {**common, "rows": str(self.rows), "bodyBytes": str(BODY_BYTES)}
        return {**common, "url": self.url, "destination": TOPIC, "columns": COLUMNS}

    def batch_read(self, who: str) -> float:
        frame = self.spark.read.format(who).options(**self.options(who)).load()
        begun = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return self.rows / (time.perf_counter() - begun)

    def stream(self, who: str) -> DataFrame:
        options = self.options(who)
        if who == "clarion":
            options |= {"subscription": f"bench-{uuid.uuid4().hex[:8]}", "startingSequence": "1"}
        return self.spark.readStream.format(who).options(**options).load()

    def stream_to_nothing(self, who: str) -> float:
        return self.run(self.stream(who).writeStream.format("noop"))

    def stream_to_parquet(self, who: str) -> float:
        target = self.folder / uuid.uuid4().hex
        rate = self.run(self.stream(who).writeStream.format("parquet").option("path", str(target)))
        shutil.rmtree(target)
        return rate

    def sink(self, who: str) -> float:
        source = self.stream("constant").select("body")
        if who == "constant":
            return self.run(source.writeStream.format("constant"))
        target = f"topic:sink-{uuid.uuid4().hex[:8]}"
        with clarion.sync.connect(self.url) as connection, connection.session() as session:
            session.command("create", {"destination": target})
            rate = self.run(source.writeStream.format("clarion").options(url=self.url, destination=target))
            sent = self.sequences(session, target)
            if sent != self.rows:
                raise BenchmarkError(f"{self.rows} rows became {sent} messages")
            session.command("drop", {"destination": target})
        return rate

    @staticmethod
    def sequences(session: Any, target: str) -> int:
        """How many messages a topic ever had."""
        found = session.command("destinations", {"after": None, "system": False})
        return next(int(one["next_sequence"]) - 1 for one in found if f"topic:{one['name']}" == target)

    def run(self, writer: Any) -> float:
        """Everything that is there, in micro-batches: rows through seconds of the middle one."""
        checkpoint = self.folder / uuid.uuid4().hex
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        if not query.awaitTermination(600):
            query.stop()
            raise BenchmarkError("a query did not end within 600 s")
        if query.exception() is not None:
            raise BenchmarkError(str(query.exception()))
        found = [
            (one.numInputRows, one.durationMs["triggerExecution"]) for one in query.recentProgress if one.numInputRows
        ]
        if sum(count for count, _ in found) != self.rows:
            raise BenchmarkError(f"{self.rows} rows were there, {sum(count for count, _ in found)} were read")
        shutil.rmtree(checkpoint)
        return float(statistics.median(1_000 * count / ms for count, ms in (found[1:] or found)))


def session(folder: Path) -> SparkSession:
    """`local[2]`, quiet."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("clarion benchmark")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def fill(url: str, count: int) -> None:
    """A topic with so many messages, held by a subscription that nobody uses."""
    with clarion.sync.connect(url) as connection, connection.session() as session:
        with session.receive_batches(TOPIC, durable="keeper"):
            pass
        bodies = [b"x" * BODY_BYTES] * 10_000
        for _ in range(count // len(bodies)):
            session.writable()
            session.send_many_nowait(TOPIC, bodies)
        session.flush()


def show(console: Console, bench: Bench) -> bool:
    """The table; whether every ratio is as promised."""
    table = Table(title=f"rows/s, local[2], {BODY_BYTES}-byte bodies, {bench.rows:,} rows, medians")
    for heading in ("", "constant", "clarion", "ratio", "promised"):
        table.add_column(heading, justify="right" if heading else "left")
    held = True
    for what, rates in bench.rates.items():
        constant, ours = statistics.median(rates["constant"]), statistics.median(rates["clarion"])
        ratio = statistics.median(our / its for our, its in zip(rates["clarion"], rates["constant"], strict=True))
        held &= ratio >= RATIO_MIN
        table.add_row(what, f"{constant:,.0f}", f"{ours:,.0f}", f"{ratio:.2f}", f"≥ {RATIO_MIN}")
    console.print(table)
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS, help="a multiple of 10,000")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    console = Console()
    with work_directory() as folder, ServerProcess(folder / "data") as server:
        fill(server.url, arguments.rows)
        spark = session(folder)
        try:
            import clarion.spark
            from benchmarks.spark_constant import ConstantSource

            clarion.spark.register(spark)
            spark.dataSource.register(ConstantSource)
            bench = Bench(spark, server.url, folder, arguments.rows)
            measured: dict[str, Callable[[str], float]] = {
                "batch read": bench.batch_read,
                "streaming read": bench.stream_to_nothing,
                "streaming → Parquet": bench.stream_to_parquet,
                "streaming → sink": bench.sink,
            }
            for number in range(arguments.rounds + 1):
                for what, measure in measured.items():
                    for who in ("constant", "clarion"):
                        rate = measure(who)
                        if number:  # the first round warms everything
                            bench.note(what, who, rate)
                            console.print(f"[dim]{number}: {what}, {who}: {rate:,.0f}/s[/dim]")
            held = show(console, bench)
        finally:
            spark.stop()
    if not held:
        console.print("some ratio is below what is promised")


if __name__ == "__main__":
    main()
