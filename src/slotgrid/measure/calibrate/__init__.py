"""Calibration: from a server to a profile, by probes that replay small plans on it.

Read in this order: ``rows`` (what a replay shows), ``target`` (what plans are replayed on), ``bench`` (replays that are
kept), ``plans`` (the inputs of all probes), ``statistics``; then one module a question, each with its probe (which
plans) and its estimate (a pure function of their rows): ``reuse``, ``limit``, ``decode`` with ``buckets`` and
``decode_fit``, ``prefill`` with ``prefill_fit``, ``stall``, ``slots``, ``turnaround``; last ``session`` (all probes in
order), ``profile_text`` (their results as a profile) and ``calibrate`` (the verb).
"""
