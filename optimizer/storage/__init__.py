"""Simulated recipes on disk or in a database, and who of several processes simulates which."""
