"""Decoded images kept for the next epoch: on disk, in memory, on the device."""
