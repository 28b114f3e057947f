"""What the exchange of routed tokens costs on a full mesh, in rounds: ``trainscout moe``."""
