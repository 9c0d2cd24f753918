"""The conformance suite of stores: one set of tests for every implementation of `Store`.

Use
    class TestMyStore(StoreConformance):
        def make(self, directory: Path) -> Store: ...

Rules
    1. Only what the interface promises is tested, and everything that it promises.
    2. No dependency on a test framework: plain classes, plain asserts. pytest finds the methods, and
       gives `tmp_path`.
"""

from __future__ import annotations

import threading
from pathlib import Path

from clarion.journal.store import Store


class StoreConformance:
    """Subclass it, and say in `make` how a new store is made."""

    def make(self, directory: Path) -> Store:
        raise NotImplementedError

    def test_a03_a_created_file_is_whole_and_zero(self, tmp_path: Path) -> None:
        store = self.make(tmp_path)
        file = store.create()
        assert file in store.files()
        assert store.read(file, 0, store.segment_bytes) == bytes(store.segment_bytes)
        store.close()

    def test_a03_files_are_distinct_and_listed(self, tmp_path: Path) -> None:
        store = self.make(tmp_path)
        before = set(store.files())
        created = [store.create() for _ in range(3)]
        assert len(set(created)) == 3
        assert set(store.files()) == before | set(created)
        store.write(created[0], 0, [b"one"])
        assert store.read(created[1], 0, 3) == bytes(3)
        store.close()

    def test_a05_what_is_written_is_read(self, tmp_path: Path) -> None:
        store = self.make(tmp_path)
        file = store.create()
        end = store.segment_bytes
        assert store.write(file, 4096, [b"abc", memoryview(b"defg"), bytearray(b"hi")]) == 9
        assert store.write(file, end - 2, [b"zz"]) == 2
        store.sync(file)
        assert store.read(file, 4095, 11) == b"\0abcdefghi\0"
        assert store.read(file, 4095, 11, alone=True) == b"\0abcdefghi\0"
        assert store.read(file, end - 3, 3) == b"\0zz"
        store.close()

    def test_a05_many_buffers_arrive_in_order_if_the_caller_continues(self, tmp_path: Path) -> None:
        store = self.make(tmp_path)
        file = store.create()
        pieces = [bytes([number % 251 + 1]) * 3 for number in range(5_000)]
        expected = b"".join(pieces)
        offset, left = 512, expected
        count = store.write(file, offset, pieces)
        while count < len(left):
            offset, left = offset + count, left[count:]
            count = store.write(file, offset, [left])
        assert store.read(file, 512, len(expected)) == expected
        store.close()

    def test_a05_an_overwrite_replaces_only_its_bytes(self, tmp_path: Path) -> None:
        store = self.make(tmp_path)
        file = store.create()
        store.write(file, 0, [b"x" * 1024])
        store.write(file, 512, [b"y" * 10])
        assert store.read(file, 500, 30) == b"x" * 12 + b"y" * 10 + b"x" * 8
        store.close()

    def test_a05_other_threads_read_what_was_written(self, tmp_path: Path) -> None:
        store = self.make(tmp_path)
        file = store.create()
        store.write(file, 8192, [b"seen"])
        seen: list[bytes] = []
        reader = threading.Thread(target=lambda: seen.append(store.read(file, 8192, 4)))
        reader.start()
        reader.join()
        assert seen == [b"seen"]
        store.close()
