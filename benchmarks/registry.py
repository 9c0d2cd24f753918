"""All contestants in the order of the table: Clarion, the peers, the raw limits.

Clarion's own line comes from `benchmarks/clarion_peer.py`, which has the same `contestants()` function as every
peer's module. The first contestant whose name begins with "Clarion" is what ratios refer to.
"""

from __future__ import annotations

import importlib
import importlib.util

from benchmarks import bare
from benchmarks.contestant import Peer
from benchmarks.peers import kafka, nats_jetstream, rabbitmq, redis_streams

CLARION_MODULE = "benchmarks.clarion_peer"


def _clarion() -> list[Peer]:
    if importlib.util.find_spec(CLARION_MODULE) is None:
        return []
    made: list[Peer] = importlib.import_module(CLARION_MODULE).contestants()
    return made


def contestants() -> list[Peer]:
    modules = (redis_streams, nats_jetstream, rabbitmq, kafka, bare)
    return [*_clarion(), *(peer for module in modules for peer in module.contestants())]


def chosen(only: list[str]) -> list[Peer]:
    """Contestants whose names contain one of the texts, whatever the case; all when there is no text.

    The bare path is always among them: without it the figures of two runs cannot be compared.
    """
    everyone = contestants()
    if not only:
        return everyone
    wanted = [text.lower() for text in only]
    by_name = [peer for peer in everyone if any(text in peer.name.lower() for text in wanted)]
    if not by_name:
        raise ValueError(f"no contestant's name contains {' or '.join(only)}")
    ceiling = [peer for peer in everyone if peer.name == bare.CEILING and peer not in by_name]
    return by_name + ceiling
