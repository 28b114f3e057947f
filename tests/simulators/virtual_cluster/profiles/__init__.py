"""Tests of profiles beside predictions."""
