"""Whole systems under a simulated clock, disk and network, from a seed."""
