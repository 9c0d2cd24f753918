"""What goes into which commit: a small record beside much waits for one commit besides its own, not for two (A-03)."""

from __future__ import annotations

from clarion.journal import MemoryStore
from clarion.journal.journal import EARLY_SEAL_BYTES

from .journal_harness import Owner, open_owner

SEGMENT_BYTES = 8 << 20


def test_a03_what_comes_behind_much_that_is_sealed_goes_with_it() -> None:
    owners: list[Owner] = []
    syncs = 0

    def probe(point: str) -> None:
        nonlocal syncs
        if point != "journal.before_sync" or not owners:
            return
        syncs += 1
        if syncs == 1:  # the disk is busy with the first: much comes, and then little
            owner = owners[0]
            for body in (bytes(EARLY_SEAL_BYTES), b"small"):
                owner.append(body)
                owner.journal.flush()

    owner = open_owner(MemoryStore(SEGMENT_BYTES), probe)
    owners.append(owner)
    owner.append(b"first")
    owner.committer.run()
    assert owner.durable_count == 3
    assert syncs == 2
    owner.journal.close()


def test_a03_little_that_comes_during_a_commit_is_gathered() -> None:
    owners: list[Owner] = []
    syncs = 0

    def probe(point: str) -> None:
        nonlocal syncs
        if point == "journal.before_sync" and owners:
            syncs += 1
            if syncs == 1:
                for _ in range(5):
                    owners[0].append(b"small")
                    owners[0].journal.flush()

    owner = open_owner(MemoryStore(SEGMENT_BYTES), probe)
    owners.append(owner)
    owner.append(b"first")
    owner.committer.run()
    assert (owner.durable_count, syncs) == (6, 2)
    owner.journal.close()
