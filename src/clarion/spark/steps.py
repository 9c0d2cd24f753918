"""The steps of a micro-batch as test points, in whichever of Spark's Python processes passes them.

Armed by the environment that a driver or worker is started with: `CLARION_ARM=spark.prepared=kill` ends a Python worker
right after its rows are prepared at the broker. Disarmed they cost a call.
"""

from __future__ import annotations

from clarion.instruments.steps import JobSteps

STEPS = JobSteps(
    {
        "planned": "the driver has told Spark which sequences a micro-batch has",
        "read": "a task has read some rows of its share",
        "staged": "a task has sent its rows into a transaction, and not prepared it",
        "prepared": "a task has prepared its transaction, and not told the driver",
        "committing": "the driver is about to commit the prepared transactions of a micro-batch",
        "committed": "the driver has committed them, and Spark does not know",
        "confirming": "the driver is about to confirm to the broker what Spark has committed",
    },
    prefix="spark.",
)
at = STEPS.at
