"""Faults on purpose: kills, failing disks, flipped bits, full file systems, starts that cannot succeed."""
