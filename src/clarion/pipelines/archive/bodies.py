"""Large bodies in an archive: files beside the data, because the broker forgets a body when its message is confirmed.

A body is one file, with the id of its message in its name. It is written under another name, compared with size and
checksum that its sender gave, made durable and renamed: a file that has the name of a body is that body. A batch that
is repeated after a crash fetches its bodies again, under new names: so no vacuum can mistake them for old ones.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator

from crc32c import crc32c

from clarion.errors import BadArgument, BadBatch
from clarion.pipelines.archive import layout, steps
from clarion.pipelines.archive.files import Files
from clarion.pipelines.archive.measuring import Large, Measured
from clarion.spark.references import parse_reference

Fetch = Callable[[str], Iterable[bytes]]
"""The bytes of a body, by its reference."""


def bring(files: Files, staged: Measured, fetch: Fetch | None) -> tuple[str, ...]:
    """Store the large bodies of a staged file; their paths. Raises `BadArgument` if nobody can fetch them."""
    if staged.large and fetch is None:
        detail = f"{len(staged.large)} rows of {staged.destination} have large bodies, and no `fetch` to get them by"
        raise BadArgument(argument="fetch", detail=detail)
    paths = []
    for large in staged.large:
        assert fetch is not None
        path = layout.body_path(staged.date, large.id, secrets.token_hex(4))
        files.store(path, _checked(large, fetch))
        steps.at("archive.body")
        paths.append(path)
    return tuple(paths)


def _checked(large: Large, fetch: Fetch) -> Iterator[bytes]:
    """The chunks of a body; raises `BadBatch` at the end if it is another one."""
    wanted = parse_reference(large.reference)
    size = checksum = 0
    for chunk in fetch(large.reference):
        size += len(chunk)
        checksum = crc32c(chunk, checksum)
        yield chunk
    if (size, checksum) != (wanted.size, wanted.checksum):
        raise BadBatch(detail=f"the large body of message {large.id} has {size} bytes or another checksum")
