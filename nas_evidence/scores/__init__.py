"""Scores of an architecture, one file each: formula, protocol, and checkpoint state.

`protocol.py` defines what a score may do during a trial; `nas_evidence/registry.py` declares all
scores.
"""
