"""Scores of an architecture, one file each: formula, protocol, and checkpoint state.

`protocol.py` defines what a score may do during a trial; `spec/registry.py` declares all scores.
"""
