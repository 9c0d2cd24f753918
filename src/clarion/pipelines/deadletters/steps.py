"""The steps of a resubmission as test points, so that each can be broken.

Disarmed they cost a call; `CLARION_ARM=deadletters.sent=kill@2` ends a process after its second chunk is sent.
"""

from __future__ import annotations

from clarion.instruments.steps import JobSteps

STEPS = JobSteps(
    {
        "selected": "it is known which messages are to be sent, and not written down",
        "frozen": "that is written down, and nothing is sent",
        "asked": "a chunk is about to be sent",
        "sent": "a chunk is sent, and not noted",
        "noted": "a chunk is noted",
        "counted": "a watch has counted, and not sent what it found",
        "told": "a watch has sent what it found",
    },
    prefix="deadletters.",
)
at = STEPS.at
