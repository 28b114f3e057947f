"""Packets: every one of every flow, through queues, marks, pauses and rate control."""
