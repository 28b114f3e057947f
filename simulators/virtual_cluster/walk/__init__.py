"""The walk of a rank's events: one for scripts that run live and traces that are executed.

``rank_walk`` says what waits for what, ``rendezvous`` which communications of several ranks are
one, ``launches`` and ``host`` what operations launch and what that takes the host, ``prices`` what
all of it takes the device.
"""
