"""Pages of Java become one line."""

from __future__ import annotations

import pytest

from clarion.pipelines.failures import CHARACTERS_MAX, reason

PYTHON = """[STREAM_FAILED] Query copy.copy [id = 1f, runId = 2c] terminated with exception:
Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure:
Lost task 0.3 in stage 3.0 (TID 9) (localhost executor driver):
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/pyspark/worker.py", line 1, in main
    process()
{last}

	at org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
Driver stacktrace: SQLSTATE: XXKST
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (PYTHON.format(last="clarion.errors.BadArgument: CLN-210 where: no"), "CLN-210 where: no"),
        (PYTHON.format(last="ZeroDivisionError: division by zero"), "ZeroDivisionError: division by zero"),
        (PYTHON.format(last="package.module.OddError: it is odd"), "OddError: it is odd"),
        (
            "AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column named `x` cannot be resolved.\n'Filter",
            "AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column named `x` cannot be resolved.",
        ),
        (
            "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
            "java.io.IOException: No space left on device\n\tat x",
            "No space left on device",
        ),
        (
            "StreamingQueryException: [STREAM_FAILED] Query copy.copy [id = 2-3, runId = 4] terminated with exception: "
            "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 "
            "in stage 0.0 (TID 3) (localhost executor driver): org.apache.spark.SparkRuntimeException: "
            "[USER_RAISED_EXCEPTION] too many coffees SQLSTATE: P0001\n\tat x",
            "[USER_RAISED_EXCEPTION] too many coffees",
        ),
        (
            PYTHON.format(last="clarion.errors.CheckpointLost: CLN-223 subscription s of queue:in was read")
            + "=== Streaming Query ===\nLogical Plan:\n"
            + "Project [CASE raise_error(USER_RAISED_EXCEPTION, concat(CLN-210 copy: too large: , large#58)) END]",
            "CLN-223 subscription s of queue:in was read",
        ),
        ("CLN-210 \x1b[31mred\x07: no", "CLN-210 [31mred : no"),
        ("", "it does not say why"),
        ("x" * 5_000, "x" * CHARACTERS_MAX + "…"),
    ],
)
def test_d11_one_line_that_says_why(text: str, told: str) -> None:
    assert reason(text) == told
