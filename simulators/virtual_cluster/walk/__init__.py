"""What the events of a walked rank take: for scripts that run live and traces that are executed.

``traces.rank_walk`` says what waits for what; here ``rendezvous`` says which communications of
several ranks are one, ``launches`` and ``host`` what operations launch and what that takes the
host, ``prices`` what all of it takes the device, ``flow_patterns`` what it asks of links.
"""
