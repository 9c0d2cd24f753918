"""Source and sink in one query, with whatever takes part killed: each message arrives exactly once (D-01, D-02)."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.spark.copying import SOURCE, SUBSCRIPTION, TARGET, Story, until

pytest.importorskip("pyspark", reason="the extra spark is not installed")
if shutil.which("java") is None:
    pytest.skip("there is no Java", allow_module_level=True)


@pytest.mark.timeout(900)
def test_d02_each_message_once_over_kills_of_driver_worker_and_broker(tmp_path: Path) -> None:
    with Story(tmp_path) as story:
        story.send(10_000)
        story.kill_at("committing")
        assert story.depth(SOURCE, SUBSCRIPTION) == 10_000, "confirmed before Spark has committed anything"
        assert story.depth(TARGET) == 0, "seen before it is committed"
        story.kill_at("committed")
        assert story.depth(SOURCE, SUBSCRIPTION) == 10_000
        assert story.depth(TARGET) == 2_000
        with story.run(arm="spark.staged=kill@2") as run:  # a Python worker: its task is tried again
            until(lambda: story.depth(TARGET) >= 6_000, "some batches are done")
            story.server.kill()
            story.server.start()
            story.send(5_000)
            until(lambda: story.depth(TARGET) == story.sent, "all are there")
            assert run.is_alive, run.log()
            assert run.stop() == 0, run.log()
        story.check()


@pytest.mark.soak
def test_d11_once_leaves_nothing_unconfirmed_of_a_topic(tmp_path: Path) -> None:
    with Story(tmp_path) as story:
        story.send(3_000)
        with story.run(once=True) as run:
            assert run.wait() == 0, run.log()
        story.check()


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_d02_thirty_kills_and_a_million_messages(tmp_path: Path) -> None:
    chance = random.Random(20_261_116)
    kills = 0
    with Story(tmp_path) as story:
        story.send(1_000_000)
        while kills < 32:
            what = chance.choice(["driver at a step", "driver", "worker", "worker at a step", "broker"])
            if what == "driver at a step":
                step = chance.choice(["planned", "committing", "committed", "confirming", "read", "staged", "prepared"])
                story.kill_at(step, chance.randint(1, 3), rows_per_batch=20_000)
                kills += 1
                continue
            arm = f"spark.{chance.choice(['read', 'staged', 'prepared'])}=kill@2" if what == "worker at a step" else ""
            with story.run(arm=arm, rows_per_batch=20_000) as run:
                before = story.depth(TARGET)
                target = min(before + chance.randint(20_000, 60_000), story.sent)
                if what == "worker":
                    until(run.workers, "there are workers")
                    for worker in run.workers():
                        worker.kill()
                elif what == "broker":
                    until(lambda before=before: story.depth(TARGET) > before, "it works")  # type: ignore[misc]
                    story.server.kill()
                    story.server.start()
                until(lambda target=target: story.depth(TARGET) >= target or not run.is_alive, "it goes on")  # type: ignore[misc]
                assert run.is_alive, run.log()
                kills += 1 if what in ("driver", "worker at a step") else 2
            if story.depth(TARGET) == story.sent:
                story.send(200_000)
        with story.run(once=True, rows_per_batch=100_000) as run:
            assert run.wait() == 0, run.log()
        print(f"{kills} kills, {story.sent:,} messages")
        story.check()
