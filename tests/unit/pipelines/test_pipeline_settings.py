"""Settings of pipelines: understood completely, or refused with file, table and key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from clarion.errors import BadArgument, BadName, BadSetting
from clarion.pipelines import registry, settings
from clarion.pipelines.registry import Context, Pipeline, Started


class _Rotating(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    target: str
    every_ms: int = 1_000
    parts: int = 2
    names: list[str] = []

    def __post_init__(self) -> None:
        if self.parts < 1:
            raise BadArgument(argument="parts", detail="at least 1")


class _Cleaning(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    target: str
    keep: int = 7


def _start(_context: Context, _settings: Any) -> Started:
    return Started([])


def _run(_context: Context, _settings: Any, _report: Any, _stopping: Any) -> dict[str, Any]:
    return {}


CLEAN = Pipeline(name="rotating.clean", summary="", settings=_Cleaning, run=_run)
ROTATING = Pipeline(name="rotating", summary="", settings=_Rotating, start=_start, jobs=(CLEAN,))


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_MODULES", {"rotating": __name__})
    monkeypatch.setitem(globals(), "PIPELINE", ROTATING)


def file(folder: Path, text: str) -> Path:
    path = folder / "pipelines.toml"
    path.write_text(text, "utf-8")
    return path


WHOLE = """
[pipeline]
url = "clarion://10.0.0.1:7750"
master = "local[3]"
checkpoint = "/srv/pipelines"
name = "site 7"
trigger_ms = "2 s"

[pipeline.spark]
"spark.driver.memory" = "3g"
"spark.ui.enabled" = true

[pipeline.rotating]
target = "queue:a"
every_ms = "5 min"

[pipeline.rotating.clean]
keep = 3

[pipeline.second]
kind = "rotating"
target = "queue:b"

[pipeline.foreign]
whatever = 1
"""


def test_d11_a_file_says_everything(tmp_path: Path) -> None:
    run = settings.prepare("rotating", file(tmp_path, WHOLE))
    assert run.name == "rotating" and run.pipeline is ROTATING
    assert run.settings == _Rotating(target="queue:a", every_ms=300_000)
    assert run.common.url == "clarion://10.0.0.1:7750" and run.common.trigger_ms == 2_000
    assert run.common.spark == {"spark.driver.memory": "3g", "spark.ui.enabled": True}
    assert run.checkpoint == "/srv/pipelines/rotating" and run.folder == Path("/srv/pipelines/rotating")


def test_d11_a_second_one_of_a_kind_has_its_own_table_name_and_folder(tmp_path: Path) -> None:
    run = settings.prepare("second", file(tmp_path, WHOLE))
    assert (run.name, run.pipeline) == ("second", ROTATING)
    assert run.settings == _Rotating(target="queue:b")
    assert run.checkpoint == "/srv/pipelines/second"


def test_d11_ones_own_has_the_table_of_its_name(tmp_path: Path) -> None:
    run = settings.prepare(f"{__name__}:ROTATING", file(tmp_path, WHOLE))
    assert (run.name, run.settings) == ("rotating", _Rotating(target="queue:a", every_ms=300_000))
    path = file(tmp_path, f'[pipeline.third]\nkind = "{__name__}:ROTATING"\ntarget = "x"\n')
    assert settings.prepare("third", path).checkpoint.endswith("/third")


def test_d11_a_job_takes_from_its_pipeline_what_it_knows(tmp_path: Path) -> None:
    run = settings.prepare("rotating.clean", file(tmp_path, WHOLE))
    assert run.pipeline is CLEAN and run.settings == _Cleaning(target="queue:a", keep=3)
    assert settings.prepare("rotating.clean", None, {}, ["target=x", "keep=1"]).settings == _Cleaning(
        target="x", keep=1
    )


def test_d11_the_command_line_has_precedence(tmp_path: Path) -> None:
    given = {"url": "clarion://b:1", "master": None, "checkpoint": "there"}
    assignments = ["parts=7", 'names=["a=b","c"]', "every_ms=3 s", "target=5", "spark.x=y=z"]
    run = settings.prepare("rotating", file(tmp_path, WHOLE), given, assignments)
    assert run.settings == _Rotating(target="5", every_ms=3_000, parts=7, names=["a=b", "c"])
    assert (run.common.url, run.common.master) == ("clarion://b:1", "local[3]")
    assert run.common.spark["spark.x"] == "y=z" and run.common.spark["spark.driver.memory"] == "3g"
    assert run.checkpoint == str(Path("there/rotating").resolve())


def test_d11_a_remote_checkpoint_leaves_locks_and_logs_here(tmp_path: Path) -> None:
    run = settings.prepare("rotating", None, {"checkpoint": "hdfs://nn/p/"}, ["target=x"])
    assert run.checkpoint == "hdfs://nn/p/rotating"
    assert run.folder == Path("clarion-pipelines/rotating").resolve()
    path = file(tmp_path, '[pipeline]\ncheckpoint = "s3a://b/p"\nfolder = "/var/lib/p"\n')
    assert settings.prepare("rotating", path, {}, ["target=x"]).folder == Path("/var/lib/p/rotating")
    assert settings.prepare("rotating", None, {"checkpoint": "file:///a/b"}, ["target=x"]).checkpoint == "/a/b/rotating"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[pipeline]\nurll = 1\n", "[pipeline] there is no setting `urll`"),
        ("[pipeline]\nurl = 1\n", "[pipeline] url: Expected `str`, got `int`"),
        ('[pipeline]\ntrigger_ms = "5 m"\n', "[pipeline] trigger_ms: a duration is"),
        ("[pipeline]\nretries = -1\n", "[pipeline] retries: -1 is not within"),
        ('[pipeline]\ncheckpoint = ""\n', "[pipeline] checkpoint: it is empty"),
        ("[pipeline]\n[pipeline.spark]\na = [1]\n", "[pipeline] spark[...]: Expected"),
        ("pipeline = 3\n", "[pipeline] is a table"),
        ("[pipeline.rotating]\n", "[pipeline.rotating] it needs the setting `target`"),
        ("[pipeline.rotating]\ntarget = 'x'\nparts = 'two'\n", "[pipeline.rotating] parts: Expected `int`, got `str`"),
        ("[pipeline.rotating]\ntarget = 'x'\nfart = 1\n", "[pipeline.rotating] there is no setting `fart`"),
        ("[pipeline.rotating]\ntarget = 'x'\nparts = 0\n", "[pipeline.rotating] parts: at least 1"),
        ("[pipeline.rotating]\ntarget = 'x'\nevery_ms = 'soon'\n", "[pipeline.rotating] every_ms: a duration is"),
        ("[pipeline.rotating\n", "line 1"),
    ],
)
def test_d11_what_is_wrong_is_named_with_file_table_and_key(tmp_path: Path, text: str, told: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(BadSetting) as caught:
        settings.prepare("rotating", path)
    assert str(path) in str(caught.value) and told in str(caught.value)


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("parts", "'parts' is not key=value"),
        ("=3", "'=3' is not key=value"),
        ("none=3", "command line: [pipeline.rotating] there is no setting `none`"),
        ("parts=0", "command line: [pipeline.rotating] parts: at least 1"),
        ("parts=many", "command line: [pipeline.rotating] parts: Expected `int`"),
        ("names=[1", "the value of names is not JSON"),
    ],
)
def test_d11_what_is_wrong_on_the_command_line_is_named(tmp_path: Path, assignment: str, told: str) -> None:
    with pytest.raises((BadSetting, BadArgument)) as caught:
        settings.prepare("rotating", file(tmp_path, WHOLE), {}, [assignment])
    assert told in str(caught.value)


@pytest.mark.parametrize("name", ["../x", "..", ".hidden", "a b"])
def test_d11_a_name_is_that_of_a_folder_and_a_topic(tmp_path: Path, name: str) -> None:
    path = file(tmp_path, f'[pipeline."{name}"]\nkind = "rotating"\ntarget = "x"\n')
    with pytest.raises(BadName):
        settings.prepare(name, path)
