"""The labelled steps of an archive and of a replay as test points, so that each can be broken.

Disarmed they cost a call; `CLARION_ARM=archive.entry=kill@2` ends a process before its second entry is in the log.
"""

from __future__ import annotations

from clarion.instruments.steps import JobSteps

STEPS = JobSteps(
    {
        "archive.staged": "a batch is written by Spark, and none of it is in its place",
        "archive.body": "a large body is in its place, and no entry names it",
        "archive.placed": "a data file is in its place, and no entry names it",
        "archive.entry": "an entry is about to be written",
        "archive.writing": "an entry is written under another name",
        "archive.entered": "an entry is in the log, and nobody was told",
        "archive.checkpoint": "a checkpoint is about to be written",
        "archive.compacted": "a compacted file is written, and no entry names it",
        "archive.retain": "it is decided what is too old or too much, and not written",
        "archive.vacuum": "a file is about to be deleted",
        "archive.vacuumed": "files are deleted, and that is not written",
        "archive.cleaned": "an old entry of the log is about to be deleted",
        "replay.pinned": "a replay has its place in the log of the archive, and has sent nothing",
        "replay.sent": "a chunk is sent, and not prepared",
        "replay.prepared": "a chunk is prepared, and not committed",
        "replay.committed": "a chunk is committed, and nobody was told",
        "replay.done": "everything is committed, and the archive is still pinned",
    }
)
at = STEPS.at
