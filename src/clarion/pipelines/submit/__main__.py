"""A pipeline under spark-submit.

    spark-submit [options of Spark] "$(python -m clarion.pipelines.submit)" NAME [options of `clarion pipeline run`]

The same as `clarion pipeline run NAME …`; master, memory and where the driver runs are what spark-submit was told.
Without arguments it prints the path of this file. It has a folder of its own: Python looks for modules first where the
program is, and would find pipelines there instead of modules of its library that have the same names.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run what the arguments say, or print where this file is."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ and len(sys.argv) == 1:
        sys.stdout.write(f"{__file__}\n")
        return
    from clarion.cli.main import main as command

    command(["pipeline", "run", *sys.argv[1:]])


if __name__ == "__main__":
    main()
