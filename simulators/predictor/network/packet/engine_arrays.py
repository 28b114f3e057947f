"""The engine's state: a few tables of whole numbers, one row a port, a flow, a packet.

A port is the sending end of a directed link, so ports are numbered as links are. Times are
picoseconds; -1 is no time, no packet, no flow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import settings as declared

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

PICOSECONDS = 1e12
# The last time there is, 53 days: sums of times cannot overflow.
CLOCK_END = 1 << 62
NONE = -1

# Columns of ports: a link has as many rows as there are traffic classes, those of class c from
# c x links on; its row of class 0 holds FREE_AT and TX of all. Packets wait in a queue (head,
# tail, bytes), then fly (head, tail) until they arrive. TX and ARRIVES say that such an event is
# due, WAKE when the next wake-up is. INGRESS are the bytes that came over this link and wait
# behind it.
# RING is a flow that starts here, of a ring of such; LAST_OWN: the last packet sent was one of
# theirs. FLIPS_AT: when the last pause or resume is there; DRAWS counts random numbers. USERS are
# the flows under way over it. PARKED ports stand still: a hybrid engine skips their time; CLAIMED
# ones are played from memory until then. PAUSED is 1 when told to stop, and 2 more when the link
# is down. SERVED is how far a class is in weighted turns, each byte counting TURN_COST, TURN_AT
# how far its link is; DROPS are packets that found no room.
(DELAY, FREE_AT, QUEUE_HEAD, QUEUE_TAIL, QUEUE_BYTES, FLY_HEAD, FLY_TAIL, TX, ARRIVES,
 PAUSED, INGRESS, ASKED, RING, WAKE, LAST_OWN,
 MOST_QUEUED, BYTES_SENT, MARKS, PAUSES, PAUSED_SINCE, PAUSED_FOR,
 FLIPS_AT, DRAWS, USERS, PARKED, CLAIMED,
 SERVED, TURN_AT, TURN_COST, DROPS) = range(30)  # fmt: skip
PORT_COLUMNS = 30
PORT_STARTS_AT_ZERO = (
    *(FREE_AT, QUEUE_BYTES, TX, ARRIVES, PAUSED, INGRESS, ASKED, LAST_OWN),
    *(MOST_QUEUED, BYTES_SENT, MARKS, PAUSES, PAUSED_FOR),
    *(FLIPS_AT, DRAWS, USERS, PARKED, CLAIMED, SERVED, TURN_AT, TURN_COST, DROPS),
)
# What a port has done so far, not what it is doing.
PORT_STATISTICS = (MOST_QUEUED, BYTES_SENT, MARKS, PAUSES, PAUSED_FOR, DRAWS)

# Columns of flows. Payload bytes: SIZE, SENT, DELIVERED; OPEN are those unacknowledged. BACK is
# the time of an acknowledgement's way, PACE when the next packet may go. WAITS for so many
# others, EARLIEST start, LAG after the last of them; FIRST_TIE its list of followers announced
# with it, FIRST_LATER of those announced later. EPISODE it belongs to; RESTING while it is played
# from memory. ACKED are bytes since the last look at their delay, BASE_RTT is an idle path's.
# PATH is the row of paths that packets take, one of PATHS from FIRST_PATH on. ACKED_TO is the
# first byte not acknowledged in order, HEARD_AT when the sender last heard; REFUSED: the receiver
# has asked to go back. LOST lists lost packets; TIMER is when the sender looks for some, RESENT
# bytes.
# WINDOW_SET is when HPCC last settled the window; CUT the payload of one packet.
(SIZE, SENT, DELIVERED, OPEN, WINDOW, FIRST, HOPS, BACK, NEXT, BEFORE, ACK_HEAD, ACK_TAIL, PACE,
 PATH, FIRST_PATH, PATHS, EARLIEST, LAG, BEGAN, DONE, WAITS, FIRST_TIE, FIRST_LATER, LAST_NOTICE,
 ALPHA_AT, RISE_AT, RISES, EPISODE, RESTING, ACKED, BASE_RTT, ACKED_TO, HEARD_AT, REFUSED, LOST,
 TIMER, RESENT, WINDOW_SET, CUT) = range(39)  # fmt: skip
FLOW_COLUMNS = 39

# Columns of flows' rates, bytes per picosecond: now, the one to recover, the most, and alpha.
RATE, TARGET, LINE, ALPHA = range(4)

# Columns of packets: TIME it arrives, or is acknowledged; CAME_BY the link it came over; PATH_ROW
# the path it takes; LEFT_AT when it was sent.
FLOW, HOP, BYTES, TIME, LINK_NEXT, MARKED, CAME_BY, PATH_ROW, LEFT_AT = range(9)
PACKET_COLUMNS = 9
# What else a packet carries where somebody reads it, STAMPS columns a hop from PACKET_COLUMNS on,
# of a flow from FLOW_COLUMNS on what its last acknowledgement carried. Switches stamp for HPCC:
# when it left, over which port, what that had sent and what waited there. In the place of the
# sender, who stamps nothing: where in its flow a packet begins, of an acknowledgement what is
# expected next.
STAMPED_AT, STAMPED_PORT, STAMPED_SENT, STAMPED_QUEUE = range(4)
STAMPS = 4
FIRST_BYTE = PACKET_COLUMNS

# The column of episodes, flows that were announced together and may meet: to be looked at when the
# first of them starts, or just played.
STATE = 0
EPISODE_COLUMNS = 1
WAITING, PLAIN = range(2)

# Counters. STOP_AT: playing stops once so many flows have arrived (0: never).
(NOW, EVENTS_DUE, FREE_PACKET, PACKETS_OUT, HOPS_DONE, MOST_FOLLOWERS, BROKE_AT, UNFINISHED,
 ARRIVED, STOP_AT) = range(10)  # fmt: skip
COUNTERS = 10

# Kinds of events, in the order in which those of one time are played; within a kind the lower
# number goes first. So what happens depends on nothing but what meets. A FLIP pauses a link or
# lets it go on; FINISH ends a flow played from memory; at RECOVER a sender looks for losses. All
# that ends at a time has ended before anything starts, and all that starts has before anything is
# sent.
(ARRIVE_EVENT, FLIP_EVENT, FINISH_EVENT, START_EVENT, WAKE_EVENT, TX_EVENT,
 RECOVER_EVENT) = range(7)  # fmt: skip
# An event's code is its kind above its subject's number.
KIND_SHIFT = 48
SUBJECT = (1 << KIND_SHIFT) - 1
LAST_CODE = 1 << 60

# What playing ended with.
REACHED, NO_PACKETS, NO_EVENTS, DROPPED, TOUCHES_RESTING, OPENS, STOPPED = range(7)


# Entries of the settings' arrays: whole numbers, and others.
(PACKET, HEADER, PAUSE, RESUME, LIMIT, PACED, NOTICE_GAP, ALPHA_GAP, RISE_GAP, FAST,
 SEED, SEGMENT, LOW, HIGH, CLASSES, LINKS, WEIGHTED, ROUTING, RECOVERY, PATIENCE, STAGES,
 HPCC_ADD) = range(22)  # fmt: skip
WHOLE_SETTINGS = 22
(GAIN, ADDITIVE, HYPER, LEAST, MOST_MARKED, DELAY_ADD, DELAY_BETA, EWMA,
 MOST_CUT, ETA) = range(10)  # fmt: skip
OTHER_SETTINGS = 10
# What PACED says: who limits a flow beside its window.
WINDOW_ONLY, DCQCN, TIMELY, SWIFT, HPCC = range(5)
# What ROUTING and RECOVERY say.
PER_FLOW, SPRAY, ADAPTIVE = range(3)
NO_RECOVERY, GO_BACK_N, SELECTIVE_REPEAT = range(3)
# Where packets are sent in trains as one, a flow is at least so many, or what it takes is not told
# to a percent; and a window, or its link would be idle.
TRAINS_IN_FLOW, TRAINS_IN_WINDOW = 64, 8
# What a class of weight 1 is further by for each byte: divisible by all weights up to 16.
WEIGHT_UNIT = 720720
# Bits of PAUSED and of MARKED.
TOLD_TO_STOP, DOWN = 1, 2


def blank(rows: int, columns: int) -> Ints:
    """A table of nothing."""
    return np.full((rows, columns), NONE, dtype=np.int64)


def idle_ports(delay: Ints) -> Ints:
    """Ports that have never done anything; ``delay`` in picoseconds, shape (ports,)."""
    ports = blank(len(delay), PORT_COLUMNS)
    ports[:, list(PORT_STARTS_AT_ZERO)] = 0
    ports[:, DELAY] = delay
    return ports


def grown(table: NDArray[Any], rows: int) -> NDArray[Any]:
    """The table with room for at least ``rows`` rows; new ones are blank."""
    if rows <= len(table):
        return table
    larger = np.full((max(rows, 2 * len(table)), *table.shape[1:]), NONE, dtype=table.dtype)
    larger[: len(table)] = table
    return larger


def to_picoseconds(seconds: Floats) -> Ints:
    return np.rint(np.asarray(seconds, dtype=np.float64) * PICOSECONDS).astype(np.int64)


def constants(settings: declared.PacketSettings, links: int) -> tuple[Ints, Floats]:
    """The settings as the kernel reads them: ``WHOLE_SETTINGS`` and ``OTHER_SETTINGS``."""
    dcqcn = settings.dcqcn
    gaps = to_picoseconds(
        np.array([dcqcn.cnp_interval_s, dcqcn.alpha_interval_s, dcqcn.increase_interval_s])
    )
    whole = np.zeros(WHOLE_SETTINGS, dtype=np.int64)
    whole[PACKET], whole[HEADER] = settings.packet_bytes, settings.header_bytes
    whole[PAUSE] = 0 if settings.pause_bytes is None else settings.pause_bytes
    whole[RESUME] = settings.resume_bytes
    # Pauses are what keeps queues short.
    whole[LIMIT] = CLOCK_END if settings.pause_bytes is not None else settings.queue_bytes
    whole[CLASSES], whole[LINKS] = settings.classes, links
    whole[WEIGHTED] = bool(settings.weights)
    whole[ROUTING] = declared.ROUTING.index(settings.routing)
    whole[RECOVERY] = declared.RECOVERY.index(settings.recovery)
    whole[PATIENCE] = to_picoseconds(np.array(settings.timeout_s))
    whole[STAGES], whole[HPCC_ADD] = settings.hpcc.max_stage, settings.hpcc.additive_bytes
    whole[PACED] = declared.CONGESTION.index(settings.congestion)
    whole[[NOTICE_GAP, ALPHA_GAP, RISE_GAP]] = gaps
    whole[FAST] = dcqcn.fast_recoveries
    # Far apart, so that one seed's ports are not the next one's neighbours.
    whole[SEED] = (settings.seed * 0x9E3779B1) & 0xFFFFFFFF
    part = np.zeros(OTHER_SETTINGS)
    part[GAIN] = dcqcn.g
    part[ADDITIVE] = dcqcn.additive_bytes_per_s / PICOSECONDS
    part[HYPER] = dcqcn.hyper_bytes_per_s / PICOSECONDS
    part[LEAST] = dcqcn.least_bytes_per_s / PICOSECONDS
    part[MOST_MARKED] = dcqcn.mark_at_most
    part[ETA] = settings.hpcc.eta
    timely, swift = settings.timely, settings.swift
    if settings.congestion == "timely":
        whole[[LOW, HIGH]] = to_picoseconds(np.array([timely.low_s, timely.high_s]))
        whole[SEGMENT] = timely.segment_bytes
        part[DELAY_ADD] = timely.additive_bytes_per_s / PICOSECONDS
        part[LEAST] = timely.least_bytes_per_s / PICOSECONDS
        part[DELAY_BETA], part[EWMA] = timely.beta, timely.ewma
    if settings.congestion == "swift":
        whole[LOW] = to_picoseconds(np.array(swift.target_s))
        part[[DELAY_ADD, DELAY_BETA]] = swift.additive_packets, swift.beta
        part[MOST_CUT] = swift.most_cut
    return whole, part
