"""The log of an archive against a plain model: appends, compactions, retention, crashes, rival writers (D-04)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.errors import BadArgument, NewerFormat, NotReady
from clarion.pipelines.archive import layout
from clarion.pipelines.archive import log as log_module
from clarion.pipelines.archive.entries import DataFile, Entry, Pin, encoded
from clarion.pipelines.archive.files import LocalFiles
from clarion.pipelines.archive.log import LOG_GRACE_MS, Log
from clarion.pipelines.archive.retention import vacuum
from clarion.pipelines.archive.state import State

DESTINATIONS = ("topic:a", "topic:b")


class Crash(BaseException):
    """The process ends here."""


class Interrupted(LocalFiles):
    """Something happens at the next `create`: another writer comes first, or the process ends before or after it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.before: Callable[[], None] | None = None
        self.after: Callable[[], None] | None = None

    def create(self, path: str, data: bytes) -> bool:
        before, self.before = self.before, None
        if before is not None:
            before()
        made = super().create(path, data)
        after, self.after = self.after, None
        if after is not None:
            after()
        return made


def crash() -> None:
    raise Crash


def file_of(name: str, destination: str = "topic:a", first: int = 1, last: int = 1, day: int = 1) -> DataFile:
    date = f"2026-11-{day:02}"
    path = layout.data_path(date, destination, name)
    return DataFile(path, date, destination, last - first + 1, 100, first, last, 0, 0)


def appending(log: Log, file: DataFile, writer: str, batch: int) -> Callable[[State], Entry | None]:
    def decide(state: State) -> Entry | None:
        if state.has_batch(writer, batch):
            return None
        return Entry("append", log.now_ms(), writer=writer, batch=batch, add=state.numbered([file], writer))

    return decide


class World:
    """An archive of names only, several writers with their own idea of its log, and the model: who wrote what."""

    def __init__(self, root: Path) -> None:
        self.files = Interrupted(root)
        self.logs = [Log(self.files) for _ in range(3)]
        self.batches = dict.fromkeys(("p", "q"), 0)
        self.rows: dict[str, frozenset[str]] = {}
        """Model: live files, and what rows (names) each stands for."""
        self.history: list[set[str]] = [set()]
        self.made = 0

    def live_rows(self) -> set[str]:
        rows = [row for several in self.rows.values() for row in several]
        assert len(rows) == len(set(rows)), "a row is there twice"
        return set(rows)

    def note(self) -> None:
        self.history.append(self.live_rows())

    def append(self, which: int, writer: str, again: bool) -> None:
        batch = self.batches[writer] - again
        if batch < 0:
            return
        self.made += 1
        file = file_of(f"f{self.made}", DESTINATIONS[self.made % 2], day=1 + self.made % 3)
        done = self.logs[which].commit(appending(self.logs[which], file, writer, batch))
        assert (done is None) == again
        if not again:
            self.batches[writer] += 1
            self.rows[file.path] = frozenset({f"{writer}{batch}"})
            self.note()

    def compact(self, which: int, date: int, stale: bool) -> None:
        """Two files into one; `stale`: somebody else does the same first."""
        old = sorted(path for path in self.rows if f"date=2026-11-{date:02}" in path)[:2]
        if len(old) < 2:
            return
        self.made += 1
        new = file_of(f"c{self.made}", "topic:c", day=date)

        def decide(state: State) -> Entry | None:
            return Entry("compact", 1, add=(new,), remove=tuple(old)) if all(p in state.files for p in old) else None

        if stale:
            self.files.before = lambda: self.compact((which + 1) % 3, date, stale=False)
        if self.logs[which].commit(decide) is not None:
            self.rows[new.path] = frozenset().union(*(self.rows.pop(path) for path in old))
            self.note()

    def retain(self, which: int, date: int) -> None:
        old = [path for path in self.rows if f"date=2026-11-{date:02}" in path]
        if old:
            self.logs[which].commit(lambda _: Entry("retain", 1, remove=tuple(old)))
            for path in old:
                del self.rows[path]
            self.note()

    def crashed(self, which: int, writer: str, after: bool) -> None:
        """An append that ends half way; the batch is tried again by a process that knows nothing."""
        self.made += 1
        file = file_of(f"x{self.made}", day=1)
        batch = self.batches[writer]
        if after:
            self.files.after = crash
        else:
            self.files.before = crash
        with pytest.raises(Crash):
            self.logs[which].commit(appending(self.logs[which], file, writer, batch))
        self.logs[which] = Log(self.files)
        if after:
            self.batches[writer] += 1
            self.rows[file.path] = frozenset({f"{writer}{batch}"})
            self.note()
        self.append(which, writer, again=after)

    def check(self) -> None:
        for log in (*self.logs, Log(self.files)):
            state = log.latest()
            assert set(state.files) == set(self.rows) and state.number == len(self.history) - 1
        for number in range(len(self.history)):
            assert Log(self.files).at(number).number == number


OPERATIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 2), st.sampled_from("pq"), st.booleans()),
    st.tuples(st.just("compact"), st.integers(0, 2), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("retain"), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.just("crashed"), st.integers(0, 2), st.sampled_from("pq"), st.booleans()),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(OPERATIONS, max_size=25))
def test_d04_any_changes_by_anybody_leave_exactly_the_rows_of_the_model(operations: list[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_module, "CHECKPOINT_ENTRIES", 4)
        world = World(Path(folder))
        for name, *arguments in operations:
            getattr(world, name)(*arguments)
            world.check()


def test_d04_a_writer_that_was_overtaken_decides_again_with_what_it_did_not_know(tmp_path: Path) -> None:
    files = Interrupted(tmp_path)
    slow, fast = Log(files), Log(files)
    seen: list[int] = []

    def decide(state: State) -> Entry:
        seen.append(len(state.files))
        return Entry("append", 1, add=(file_of("slow"),))

    def faster() -> None:
        fast.commit(lambda _: Entry("append", 1, add=(file_of("fast"),)))

    files.before = faster
    slow.commit(decide)
    assert seen == [0, 1]
    assert Log(files).latest().files.keys() == {file_of("slow").path, file_of("fast").path}


def test_d04_a_batch_is_taken_once_whichever_driver_is_faster(tmp_path: Path) -> None:
    files = Interrupted(tmp_path)
    zombie, driver = Log(files), Log(files)

    def faster() -> None:
        driver.commit(appending(driver, file_of("new"), "query", 3))

    files.before = faster
    assert zombie.commit(appending(zombie, file_of("old"), "query", 3)) is None
    assert Log(files).latest().files.keys() == {file_of("new").path}


def test_d04_a_destination_that_was_made_again_is_another_incarnation(tmp_path: Path) -> None:
    log = Log(LocalFiles(tmp_path))
    for batch, (first, last) in enumerate([(1, 100), (101, 150), (1, 20), (21, 30)]):
        log.commit(appending(log, file_of(f"f{batch}", first=first, last=last), "query", batch))
    log.commit(appending(log, file_of("other", first=15, last=25), "another", 0))
    found = {Path(file.path).stem: file.incarnation for file in log.latest().files.values()}
    assert found == {"f0": 0, "f1": 0, "f2": 1, "f3": 1, "other": 1}


def test_d04_reading_begins_at_a_checkpoint_and_old_entries_are_cleaned(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    log = Log(files)
    for number in range(100):
        log.commit(appending(log, file_of(f"f{number}"), "query", number))
    later = Log(files, lambda: log.now_ms() / 1000 + 2 * LOG_GRACE_MS / 1000)
    reads: list[str] = []
    read = files.read

    def noted(path: str) -> bytes:
        reads.append(path)
        return read(path)

    files.read = noted  # type: ignore[method-assign]
    fresh = Log(files).latest()
    assert (fresh.number, len(fresh.files)) == (100, 100)
    assert len(reads) == 1 + 4 + 1, "the checkpoint of 96, four entries, and one that is not there"
    assert later.clean() == 63 + 1, "entries below the last but one checkpoint, and one checkpoint"
    assert (
        Log(files).latest().files.keys()
        == fresh.files.keys()
        == Log(files).at(64).files.keys() | {file_of(f"f{number}").path for number in range(64, 100)}
    )
    with pytest.raises(BadArgument, match="not known any more"):
        Log(files).at(40)
    log.commit(appending(log, file_of("last"), "query", 100))
    assert Log(files).latest().number == 101


def test_d04_one_that_slept_while_its_log_was_cleaned_does_not_write_into_the_past(tmp_path: Path) -> None:
    files = Interrupted(tmp_path)
    sleeper, other = Log(files), Log(files)
    now_s = sleeper.now_ms() / 1000
    awake = [now_s]
    sleeper = Log(files, lambda: awake[0])
    sleeper.latest()

    def meanwhile() -> None:
        for number in range(100):
            other.commit(appending(other, file_of(f"f{number}"), "query", number))
        awake[0] += 2 * LOG_GRACE_MS / 1000
        assert Log(files, lambda: awake[0]).clean()

    files.before = meanwhile
    with pytest.raises(NotReady):
        sleeper.commit(appending(sleeper, file_of("late"), "sleeper", 0))
    assert sleeper.commit(appending(sleeper, file_of("again"), "sleeper", 0)) is not None
    state = Log(files).latest()
    assert state.number == 101 and file_of("again").path in state.files and file_of("late").path not in state.files


def test_d09_a_pin_keeps_files_and_entries_until_it_ends(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    now_s = [1_800_000_000.0]
    log = Log(files, lambda: now_s[0])
    new = file_of("f0")
    files.store(new.path, [b"data"])
    log.commit(appending(log, new, "query", 0))
    log.commit(lambda state: Entry("pin", log.now_ms(), pin=Pin("job", state.number, int((now_s[0] + 1e7) * 1000))))
    log.commit(lambda _: Entry("retain", log.now_ms(), remove=(new.path,)))
    now_s[0] += 1e6
    assert vacuum(files, clock=lambda: now_s[0]).removed == 0
    assert files.read(new.path) == b"data" and Log(files).at(1).files.keys() == {new.path}
    log.commit(lambda _: Entry("unpin", log.now_ms(), unpin="job"))
    assert vacuum(files, clock=lambda: now_s[0]).removed == 1
    assert files.names(layout.folder(new.date, new.destination)) == []


def test_d04_a_log_with_a_hole_damage_or_a_newer_format_is_refused(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    log = Log(files)
    for number in range(3):
        log.commit(appending(log, file_of(f"f{number}"), "query", number))
    third = files.read(layout.entry_path(3))
    files.remove(layout.entry_path(2))
    with pytest.raises(BadArgument, match="hole before entry 3"):
        Log(files).latest()
    files.create(layout.entry_path(2), third[: len(third) // 2])
    with pytest.raises(BadArgument, match="damaged"):
        Log(files).latest()
    files.remove(layout.entry_path(2))
    files.create(layout.entry_path(2), encoded(Entry("append", 1, format=2)))
    with pytest.raises(NewerFormat):
        Log(files).latest()
