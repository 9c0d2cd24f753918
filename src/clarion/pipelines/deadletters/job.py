"""Which dead messages a resubmission sends, written down before the first of them is sent.

Theory of operation
    A job is a list of sequences of `_DMQ`, made once by its filter. It is frozen: run again, the filter is not asked
    again, so a message that died meanwhile, perhaps one that this very job had sent back, is not sent by it. How far
    the job is, is noted after each chunk, but only to save time. The truth is `_DMQ` itself: a message leaves it by the
    entry that stores it where it goes, and a sequence never comes again.

Files, in the folder of the job
    job.json         number, filter, target, how many; replaced as a whole: this is the moment at which a job exists
    N.arrow          sequence, id, origin, subscription of its messages, by sequence
    progress.json    number, how many are done, how many are left, and why
"""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pyarrow as pa

from clarion.errors import BadArgument
from clarion.pipelines.archive.files import Files

SELECTION = pa.schema(
    [("sequence", pa.int64()), ("id", pa.string()), ("origin", pa.string()), ("subscription", pa.string())]
)
_JOB, _PROGRESS = "job.json", "progress.json"


class Job(msgspec.Struct, frozen=True):
    """What is to be done."""

    number: int
    which: str
    to: str | None
    total: int


class Progress(msgspec.Struct, frozen=True):
    """How far it is."""

    number: int
    done: int = 0
    """So many of the list, from its begin, were tried."""
    left: int = 0
    """Of these so many are still dead."""
    problems: dict[str, int] = {}
    """Why, as the broker says it, and how many."""
    finished: bool = False


class Journal:
    """The files of one job after the other."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def last(self) -> tuple[Job, Progress] | None:
        """The job that was begun last, finished or not."""
        try:
            job = msgspec.json.decode(self._files.read(_JOB), type=Job)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise self._unreadable(_JOB, error) from None
        progress = Progress(job.number)
        with suppress(FileNotFoundError, msgspec.DecodeError):  # it is only there to save time
            noted = msgspec.json.decode(self._files.read(_PROGRESS), type=Progress)
            progress = noted if noted.number == job.number else progress
        return job, progress

    def begin(self, which: str, to: str | None, selected: pa.Table) -> Job:
        """Write a new job down, in place of one that is finished or given up. It exists when this returns."""
        before = self.last()
        job = Job(1 if before is None else before[0].number + 1, which, to, selected.num_rows)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, SELECTION) as writer:
            writer.write_table(selected.select(SELECTION.names).cast(SELECTION).sort_by("sequence"))
        self._files.store(_list(job), [sink.getvalue().to_pybytes()])
        self._files.store(_JOB, [msgspec.json.encode(job)])
        if before is not None:
            self._files.remove(_list(before[0]))
        return job

    def selected(self, job: Job) -> pa.Table:
        """Its messages. Raises `BadArgument` if the list is gone or damaged."""
        try:
            table = pa.ipc.open_file(pa.py_buffer(self._files.read(_list(job)))).read_all()
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            raise self._unreadable(_list(job), error) from None
        if table.num_rows != job.total:
            raise self._unreadable(_list(job), f"{table.num_rows} messages instead of {job.total}")
        return table

    def note(self, progress: Progress) -> None:
        """Note how far the job is."""
        self._files.store(_PROGRESS, [msgspec.json.encode(progress)])

    def _unreadable(self, name: str, why: object) -> BadArgument:
        return BadArgument(argument="checkpoint", detail=f"{self._files.uri}/{name} cannot be read: {why}")


def _list(job: Job) -> str:
    return f"{job.number}.arrow"
