"""``apex.amp``, which scripts import where Apex is found, whether or not they use it."""

from __future__ import annotations

from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refused

_REASON = "Apex's mixed precision; torch.autocast takes its place"
initialize = refused("apex.amp.initialize", _REASON)
master_params = refused("apex.amp.master_params", _REASON)
scale_loss = refused("apex.amp.scale_loss", _REASON)
