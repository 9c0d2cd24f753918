"""The settings of pipelines in TOML: `[pipeline]` for all, `[pipeline.<name>]` for each.

    [pipeline]
    url = "clarion://127.0.0.1:7750"
    master = "local[*]"
    checkpoint = "/srv/clarion/pipelines"

    [pipeline.spark]
    "spark.driver.memory" = "4g"

    [pipeline.statistics]
    …                                   # keys of that pipeline

    [pipeline.orders-copy]              # a second one of a kind has a name of its own
    kind = "copy"

Guarantees
    1. What is asked for is understood completely or refused by `BadSetting` that names file, table and key. Tables of
       other pipelines are not looked into.
    2. Order of precedence: the command line, then the file. A job takes from the table of its pipeline what it knows;
       its own table, `[pipeline.archive.compact]`, has precedence.
    3. Durations and sizes may have units ("30 s", "64 MiB") where the key says `_ms` or `_bytes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from clarion.errors import BadArgument, BadName, BadSetting
from clarion.message import check_name
from clarion.pipelines import registry
from clarion.settings import read_tables
from clarion.units import parse_unit

_ARGUMENTS = "command line"
_REMOTE = "://"


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[pipeline]`: what all pipelines are told."""

    url: str = "clarion://127.0.0.1:7750"
    master: str | None = None
    """Where Spark runs: `local[N]`, `local[*]`, `spark://host:port`, `yarn`, `k8s://…`. None: `local[*]`, or what
    spark-submit was told."""
    checkpoint: str = "clarion-pipelines"
    """Folder with a folder for each pipeline; also of a file system that Spark knows, such as `hdfs://…`."""
    folder: str | None = None
    """Local folder for lock, status and logs; None: `checkpoint` if that is local."""
    name: str = "clarion"
    """Spark calls the application `<name> <pipeline>`."""
    trigger_ms: int = 250
    """Least time from the begin of a micro-batch to that of the next one."""
    publish_ms: int = 1_000
    """Least time between two messages to `topic:pipelines.<name>`; 0: none are sent."""
    stop_ms: int = 60_000
    """How long a stop waits for the micro-batch under way."""
    retries: int = 5
    """How often a query that failed is started again before a batch of it succeeds."""
    spark: dict[str, str | int | float | bool] = msgspec.field(default_factory=dict)
    """Configuration of Spark, by its own names."""

    @property
    def local_folder(self) -> Path:
        """For lock, status and logs."""
        if self.folder is not None:
            return Path(self.folder)
        return Path("clarion-pipelines" if is_remote(self.checkpoint) else local_path(self.checkpoint))


class Run(NamedTuple):
    """One pipeline that is to run: under which name, what it is, what it is told."""

    name: str
    pipeline: registry.Pipeline
    common: PipelineSettings
    settings: Any
    """Of the type that the pipeline declares."""

    @property
    def checkpoint(self) -> str:
        root = self.common.checkpoint
        return f"{root.rstrip('/')}/{self.name}" if is_remote(root) else str((local_path(root) / self.name).resolve())

    @property
    def folder(self) -> Path:
        return (self.common.local_folder / self.name).resolve()


def is_remote(folder: str) -> bool:
    """A folder that only Spark can open."""
    return _REMOTE in folder and not folder.startswith("file://")


def local_path(folder: str) -> Path:
    return Path(folder.removeprefix("file://") if folder.startswith("file://") else folder)


def load(path: Path | None, given: Mapping[str, Any] | None = None) -> PipelineSettings:
    """`[pipeline]` of a file, with what the command line says. Raises `BadSetting` or `NoPermission`."""
    table, _ = _split(_tables(path))
    return _common(table, {key: value for key, value in (given or {}).items() if value is not None}, str(path))


def prepare(
    name: str,
    path: Path | None = None,
    given: Mapping[str, Any] | None = None,
    assignments: Sequence[str] = (),
) -> Run:
    """Everything that running pipeline `name` needs. `assignments` are `key=value` of --set.

    A key that begins with `spark.` is one of Spark's. Raises `BadSetting`, `BadArgument`, `NoPermission`,
    `BadName`, `MissingExtra`.
    """
    file = str(path) if path is not None else "defaults"
    table, others = _split(_tables(path))
    own, spark = _assigned(assignments)
    chosen = {key: value for key, value in (given or {}).items() if value is not None}
    common = _common(table, chosen, file)
    if spark:
        common = msgspec.structs.replace(common, spark={**common.spark, **spark})
    if ":" in name:  # module:attribute; its table is under the name that it gives itself
        pipeline = registry.find(name)
        name = pipeline.name
        mine = {key: value for key, value in others.get(name, {}).items() if key != "kind"}
    else:
        mine = dict(others.get(name, {}))
        pipeline = registry.find(str(mine.pop("kind", name)))
    check_running(name)
    family, _, job = pipeline.name.partition(".")
    if job and name == pipeline.name:
        mine = _of_job(others.get(family, {}), job, pipeline)
    mine = {key: value for key, value in mine.items() if key not in _job_names(pipeline)}
    return Run(name, pipeline, common, _convert(mine, own, pipeline, name, file))


def check_running(name: str) -> None:
    """Raises `BadName` for a name that no pipeline can run under: it is that of a folder, and of a topic."""
    check_name(name)
    if name.startswith("."):
        raise BadName(name=name, detail="it begins with a point")


def _tables(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    table = read_tables(path).get("pipeline", {})
    if not isinstance(table, dict):
        raise BadSetting(file=str(path), detail="[pipeline] is a table")
    return table


def _split(table: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is said to all pipelines, and the tables of single ones."""
    others = {key: value for key, value in table.items() if isinstance(value, dict) and key != "spark"}
    return {key: value for key, value in table.items() if key not in others}, others


def _common(table: Mapping[str, Any], given: Mapping[str, Any], file: str) -> PipelineSettings:
    settings: PipelineSettings = _typed(_units(table, "pipeline", file), PipelineSettings, "pipeline", file)
    for key in ("trigger_ms", "publish_ms", "stop_ms", "retries"):
        if not 0 <= getattr(settings, key) <= 86_400_000:
            raise BadSetting(file=file, detail=f"[pipeline] {key}: {getattr(settings, key)} is not within 0 to a day")
    if given:
        settings = msgspec.structs.replace(settings, **given)
    for key in ("checkpoint", "folder", "master"):
        text = getattr(settings, key)
        if text is not None and (not text.strip() or "\0" in text):
            raise BadSetting(file=_ARGUMENTS if key in given else file, detail=f"[pipeline] {key}: it is empty")
    return settings


def _job_names(pipeline: registry.Pipeline) -> set[str]:
    return {job.name.rpartition(".")[2] for job in pipeline.jobs}


def _of_job(table: Mapping[str, Any], job: str, pipeline: registry.Pipeline) -> dict[str, Any]:
    """What a job knows of its pipeline's table, and its own table."""
    known = {field.encode_name for field in msgspec.structs.fields(pipeline.settings)}
    own = table.get(job, {})
    return {**{key: value for key, value in table.items() if key in known and key != job}, **own}


def _convert(
    table: Mapping[str, Any], own: Mapping[str, Any], pipeline: registry.Pipeline, name: str, file: str
) -> Any:
    """Settings of the pipeline, of its table and of --set."""
    place = f"pipeline.{name}"
    plain = _units(table, place, file)
    if not own:
        return _typed(plain, pipeline.settings, place, file)
    given = _units(own, place, _ARGUMENTS)
    known = {field.encode_name for field in msgspec.structs.fields(pipeline.settings)}
    unknown = [key for key in given if key not in known]
    if unknown:
        raise BadSetting(file=_ARGUMENTS, detail=f"[{place}] there is no setting `{unknown[0]}`")
    return _typed({**plain, **given}, pipeline.settings, place, file, given)


def _typed(plain: Mapping[str, Any], kind: type[Any], place: str, file: str, given: Mapping[str, Any] = {}) -> Any:
    """`given` is what the command line says: texts, which are converted, and blamed on it."""
    try:
        return msgspec.convert(plain, kind, strict=not given)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        what = what.replace("Object contains unknown field", "there is no setting")
        what = what.replace("Object missing required field", "it needs the setting")
        key = where.rstrip("`").lstrip(".")
        file = _ARGUMENTS if re.split(r"\W", key)[0] in given else file
        raise BadSetting(file=file, detail=f"[{place}] {key}: {what}" if key else f"[{place}] {what}") from None
    except BadArgument as error:  # a struct checks itself
        facts = error.facts
        file = _ARGUMENTS if str(facts["argument"]) in given else file
        raise BadSetting(file=file, detail=f"[{place}] {facts['argument']}: {facts['detail']}") from None


def _units(table: Mapping[str, Any], place: str, file: str) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in table.items():
        try:
            plain[key] = parse_unit(key, value) if isinstance(value, str) else value
        except ValueError as error:
            raise BadSetting(file=file, detail=f"[{place}] {key}: {error}") from None
    return plain


def _assigned(assignments: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Of --set: settings of the pipeline, and of Spark. A list, a table or a quoted text is JSON, all else is text."""
    own: dict[str, Any] = {}
    spark: dict[str, str] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise BadArgument(argument="--set", detail=f"{text!r} is not key=value")
        if key.startswith("spark."):
            spark[key] = value
            continue
        own[key] = value
        if value[:1] in ("[", "{", '"'):
            try:
                own[key] = msgspec.json.decode(value)
            except (msgspec.DecodeError, UnicodeEncodeError) as error:
                raise BadArgument(argument="--set", detail=f"the value of {key} is not JSON: {error}") from None
    return own, spark
