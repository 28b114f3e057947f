"""The settings as the kernel reads them."""

from __future__ import annotations

import numpy as np

from . import engine_arrays as t
from .engine_arrays import Floats, Ints, to_picoseconds
from .settings import CONGESTION, RECOVERY, ROUTING, PacketSettings


def constants(settings: PacketSettings, links: int) -> tuple[Ints, Floats]:
    """The settings as the kernel reads them."""
    dcqcn = settings.dcqcn
    gaps = to_picoseconds(
        np.array([dcqcn.cnp_interval_s, dcqcn.alpha_interval_s, dcqcn.increase_interval_s])
    )
    whole = np.zeros(t.WHOLE_SETTINGS, dtype=np.int64)
    whole[t.PACKET], whole[t.HEADER] = settings.packet_bytes, settings.header_bytes
    whole[t.PAUSE] = 0 if settings.pause_bytes is None else settings.pause_bytes
    whole[t.RESUME] = settings.resume_bytes
    # Pauses are what keeps queues short.
    whole[t.LIMIT] = t.CLOCK_END if settings.pause_bytes is not None else settings.queue_bytes
    whole[t.CLASSES], whole[t.LINKS] = settings.classes, links
    whole[t.WEIGHTED] = bool(settings.weights)
    whole[t.ROUTING] = ROUTING.index(settings.routing)
    whole[t.RECOVERY] = RECOVERY.index(settings.recovery)
    whole[t.PATIENCE] = to_picoseconds(np.array(settings.timeout_s))
    whole[t.STAGES], whole[t.HPCC_ADD] = settings.hpcc.max_stage, settings.hpcc.additive_bytes
    whole[t.PACED] = CONGESTION.index(settings.congestion)
    whole[[t.NOTICE_GAP, t.ALPHA_GAP, t.RISE_GAP]] = gaps
    whole[t.FAST] = dcqcn.fast_recoveries
    # Far apart, so that one seed's ports are not the next one's neighbours.
    whole[t.SEED] = (settings.seed * 0x9E3779B1) & 0xFFFFFFFF
    part = np.zeros(t.OTHER_SETTINGS)
    part[t.GAIN] = dcqcn.g
    part[t.ADDITIVE] = dcqcn.additive_bytes_per_s / t.PICOSECONDS
    part[t.HYPER] = dcqcn.hyper_bytes_per_s / t.PICOSECONDS
    part[t.LEAST] = dcqcn.least_bytes_per_s / t.PICOSECONDS
    part[t.MOST_MARKED] = dcqcn.mark_at_most
    part[t.ETA] = settings.hpcc.eta
    timely, swift = settings.timely, settings.swift
    if settings.congestion == "timely":
        whole[[t.LOW, t.HIGH]] = to_picoseconds(np.array([timely.low_s, timely.high_s]))
        whole[t.SEGMENT] = timely.segment_bytes
        part[t.DELAY_ADD] = timely.additive_bytes_per_s / t.PICOSECONDS
        part[t.LEAST] = timely.least_bytes_per_s / t.PICOSECONDS
        part[t.DELAY_BETA], part[t.EWMA] = timely.beta, timely.ewma
    if settings.congestion == "swift":
        whole[t.LOW] = to_picoseconds(np.array(swift.target_s))
        part[[t.DELAY_ADD, t.DELAY_BETA]] = swift.additive_packets, swift.beta
        part[t.MOST_CUT] = swift.most_cut
    return whole, part
