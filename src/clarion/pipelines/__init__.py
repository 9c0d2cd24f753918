"""Pipelines: what is done with messages by Spark, ready to run. `clarion pipeline list` names them.

One module each: pure functions from DataFrame to DataFrame, and the wiring in `PIPELINE` (see `registry`). Importing
this package imports no Spark.
"""

from clarion.pipelines.registry import Context, Pipeline, Report, Started, Stopping, find, names

__all__ = ["Context", "Pipeline", "Report", "Started", "Stopping", "find", "names"]
