"""Readers: one per kind of log, each gives a Run."""
