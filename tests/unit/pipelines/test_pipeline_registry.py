"""What a pipeline is, and how it is found; without Spark."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from clarion.errors import BadArgument
from clarion.pipelines import registry
from clarion.pipelines.registry import Context, Pipeline, Started


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


def _start(_context: Context, _settings: Any) -> Started:
    return Started([])


def _run(_context: Context, _settings: Any, _report: Any, _stopping: Any) -> dict[str, Any]:
    return {}


OWN = Pipeline(name="mine", summary="of a test", settings=_Settings, start=_start)


def test_d11_the_registry_imports_no_spark() -> None:
    code = (
        "import sys, clarion.pipelines, clarion.pipelines.settings, clarion.pipelines.folder\n"
        "assert not {'pyspark', 'pandas', 'pyarrow'} & set(sys.modules), 'it does'"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_d11_every_pipeline_that_is_named_is_there_under_its_name() -> None:
    pytest.importorskip("pyspark")
    for name in registry.names():
        found = registry.find(name)
        assert found.name == name
        assert found.summary and "\n" not in found.summary
        assert issubclass(found.settings, msgspec.Struct)
        assert found.settings.__struct_config__.frozen and found.settings.__struct_config__.forbid_unknown_fields
        for job in found.jobs:
            assert registry.find(job.name) is job


def test_d11_names_that_nobody_knows_are_refused_with_those_that_exist() -> None:
    with pytest.raises(BadArgument, match=r"there is no nothing; there are alerts, archive, copy"):
        registry.find("nothing")
    pytest.importorskip("pyspark")
    with pytest.raises(BadArgument, match=r"there is no copy\.fast; copy has no jobs"):
        registry.find("copy.fast")


def test_d11_ones_own_pipeline_is_named_by_module_and_attribute() -> None:
    assert registry.find(f"{__name__}:OWN") is OWN
    for name, why in (
        (f"{__name__}:nothing", "has no attribute"),
        ("no_such_module:PIPELINE", "No module named"),
        (f"{__name__}:_start", "is no Pipeline"),
        (":x", "cannot be loaded"),
    ):
        with pytest.raises(BadArgument, match=why):
            registry.find(name)


def test_d11_a_pipeline_either_starts_or_runs() -> None:
    with pytest.raises(TypeError, match="either start or run"):
        Pipeline(name="a", summary="", settings=_Settings)
    with pytest.raises(TypeError, match="either start or run"):
        Pipeline(name="a", summary="", settings=_Settings, start=_start, run=_run)
    job = Pipeline(name="b.job", summary="", settings=_Settings, run=_run)
    with pytest.raises(TypeError, match=r"named a\.…"):
        Pipeline(name="a", summary="", settings=_Settings, start=_start, jobs=(job,))
    assert not job.is_streaming and OWN.is_streaming
