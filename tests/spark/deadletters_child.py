"""A process that goes on with a resubmission, and can be killed.

python -m tests.spark.deadletters_child URL FOLDER WHICH

Spark is needed only to find the messages, so a job that is found is gone on with without it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from clarion.pipelines import deadletters
from clarion.pipelines.deadletters.wiring import resend
from clarion.pipelines.registry import Context

CHUNK = 7


def main(url: str, checkpoint: str, which: str) -> None:
    nobody: Any = None
    context = Context(spark=nobody, url=url, checkpoint=checkpoint, name="deadletters.resend")
    settings = deadletters.ResendSettings(which=which, chunk=CHUNK)
    print(json.dumps(resend(context, settings, lambda report: None, lambda: False)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
