"""Routing of tokens to experts: who gets how many, and what the exchange costs on a full mesh.

``trainscout moe --help`` is the command; ``rank_imbalance`` says what a routing means
for a training recipe.
"""
