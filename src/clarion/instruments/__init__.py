"""Instruments: indicators, controls and test points that any code declares by one line each (row C).

    registry = Registry()
    published = registry.counter("mm.published", unit="messages", meaning="messages made durable")
    published.add(512)
    registry.sense("mm.*")

In this process only; exporting them over the wire is built on `Registry.declarations`, `sense` and `modify`.
"""

from .actions import Action, Call, Delay, Fail, Kill, Log, Stop
from .arming import Arming, parse, parse_environment
from .controls import Control, DynamicControl
from .declaration import Declaration, Kind, Value, ValueType
from .indicators import Counter, Gauge, Histogram, Indicator, Summary, Tally
from .points import TestPoint
from .registry import Instrument, Reading, Registry

__all__ = [
    "Action",
    "Arming",
    "Call",
    "Control",
    "Counter",
    "Declaration",
    "Delay",
    "DynamicControl",
    "Fail",
    "Gauge",
    "Histogram",
    "Indicator",
    "Instrument",
    "Kill",
    "Kind",
    "Log",
    "Reading",
    "Registry",
    "Stop",
    "Summary",
    "Tally",
    "TestPoint",
    "Value",
    "ValueType",
    "parse",
    "parse_environment",
]
