"""A delivered batch as an Arrow table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clarion.errors import MissingExtra
from clarion.wire.batch import Batch

if TYPE_CHECKING:
    import pyarrow


def table(batch: Batch, first_sequence: int) -> pyarrow.Table:
    """Columns `sequence`, `body`, `timestamp_ms`. Bodies are not copied unless headers lie between them."""
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtra(extra="arrow") from None
    from clarion.wire.columns import Records

    records = Records([(first_sequence, batch)])
    return pa.table(
        {"sequence": records.sequences(), "body": records.bodies(), "timestamp_ms": records.times_ms()},
    )
