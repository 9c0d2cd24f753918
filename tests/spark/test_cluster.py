"""A real Spark cluster: masters with ZooKeeper, workers, executors, each a process of its own (D-10)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.spark.copying import SOURCE, SUBSCRIPTION, TARGET, Story, until

pytest.importorskip("pyspark", reason="the extra spark is not installed")
if shutil.which("java") is None:
    pytest.skip("there is no Java", allow_module_level=True)

from clarion.testing.spark_cluster import SparkCluster


@pytest.mark.timeout(600)
def test_d10_a_pipeline_outlives_the_leading_master_and_a_worker(tmp_path: Path) -> None:
    with SparkCluster(tmp_path) as cluster, Story(tmp_path) as story:
        story.send(2_000)
        settings = ("spark.executor.memory=700m", "spark.cores.max=2")
        with story.run(master=cluster.url, settings=settings) as run:
            for break_something in (None, cluster.kill_leader, lambda: cluster.kill_worker(0)):
                if break_something is not None:
                    break_something()
                    story.send(2_000)
                until(lambda: story.depth(TARGET) == story.sent or not run.is_alive, "all are there")
                assert run.is_alive, run.log()
            assert run.stop() == 0, run.log()
        story.check()
        assert story.depth(SOURCE, SUBSCRIPTION) == 0
