"""Searches and studies as MLflow runs: one run each, one child per recipe or cell worth keeping.

MLflow takes seconds to import and to open a store, which a search should not wait for. So a
process beside it, at low priority, has the store open by the time the search ends
(``tracker``, ``serve``). What is to be logged is first written to the search's directory
(``spool``), and removed from there when it has been logged (``runs``): a server that is down or
silent costs a warning, and ``trainscout tracking flush`` tries again.
"""
