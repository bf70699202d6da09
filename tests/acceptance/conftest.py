"""Studies that several acceptance tests look at: each is searched once in a process of tests.

Tests that share one are in one file, so that processes of tests do not search it twice. No test
changes such a study: it takes a copy.
"""
