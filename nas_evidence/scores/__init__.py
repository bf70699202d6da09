"""Scores of an architecture, one file each: formula, protocol, and what a checkpoint keeps.

`protocol.py` says what a score may do in the course of a trial; `nas_evidence/registry.py`
declares them all.
"""
