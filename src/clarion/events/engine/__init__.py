"""Delivering what persistent memory holds: intake, pipelines, replay, and the thread that hosts them."""
