"""Distribution: what each recipient is owed, in what order, retries, giving up (A-07, A-08, A-09). Pure.

pipeline = Pipeline(slot, "log", RetryPolicy(), facts_of)
pipeline.load(section, floor, spans)  # what the ledger knows as confirmed
pipeline.add_section(section, rank, first)
pipeline.offer_runs(section, runs, read_to)
batch = pipeline.next_batch(now_ms, 256)
for confirm in pipeline.delivered(batch): ...  # ledger first, then `pipeline.recorded(confirm)`
"""

from clarion.events.distribution.batch import Batch, Confirm, GiveUp, Instruction
from clarion.events.distribution.lane import Range
from clarion.events.distribution.pipeline import FactsOf, Pipeline
from clarion.events.distribution.policy import RetryPolicy

__all__ = ["Batch", "Confirm", "FactsOf", "GiveUp", "Instruction", "Pipeline", "Range", "RetryPolicy"]
