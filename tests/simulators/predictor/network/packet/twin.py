"""The packet engine's rules in plain Python: one list of events, one object a packet.

Nothing is shared with the engine but the rules: no heap of list heads, no pool, no lazy wake-ups.
A sender tries whenever an acknowledgement comes back, so a wake-up that the engine forgets shows.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

PS = 1e12
ARRIVE, FLIP, START, TRY, FREE = 0, 1, 3, 4, 5


@dataclass
class Flow:
    path: list
    size: int
    window: int
    back: int
    earliest: int
    lag: int
    waits: int = 0
    followers: list = field(default_factory=list)
    sent: int = 0
    delivered: int = 0
    acks: list = field(default_factory=list)
    done: int | None = None


@dataclass
class Port:
    rate: float
    delay: int
    queue: deque = field(default_factory=deque)
    own: list = field(default_factory=list)
    free_at: int = 0
    due: bool = False
    paused: bool = False
    asked: bool = False
    ingress: int = 0
    last_own: bool = False
    bytes_sent: int = 0
    pauses: int = 0


class Twin:
    """Window control and pauses; no marks."""

    def __init__(self, rates, delay_s, settings):
        self.ports = [Port(rate, round(delay_s * PS)) for rate in rates]
        self.settings = settings
        self.flows = []
        self.events = []

    def add(self, path, size, start_s, delay_s=0.0, after=()):
        rates = [self.ports[link].rate for link in path]
        back = sum(self.ports[link].delay for link in path)
        wire = self.settings.packet_bytes + self.settings.header_bytes
        trip = sum(wire * PS / rate for rate in rates) + 2 * back
        bdp = self.settings.window * trip * (min(rates) / PS)
        window = -int(-max(bdp, 2 * self.settings.packet_bytes) // 1)
        flow = Flow(path, size, window, back, round(start_s * PS), round(delay_s * PS))
        flow.waits = len(after)
        for parent in after:
            self.flows[parent].followers.append(len(self.flows))
        if not after:
            heapq.heappush(self.events, (flow.earliest, START, len(self.flows), None))
        self.flows.append(flow)

    def play(self):
        while self.events:
            now, kind, subject, what = heapq.heappop(self.events)
            if kind == START:
                self.start(subject, now)
            elif kind == ARRIVE:
                self.arrive(subject, what, now)
            elif kind == FLIP:
                port = self.ports[subject]
                port.paused = not port.paused
                if not port.paused:
                    self.expect(subject, now)
            elif kind == FREE:
                self.ports[subject].due = False
                self.send(subject, now)
            else:
                port = self.ports[subject]
                if not port.due and port.free_at <= now and port.own:
                    self.send(subject, now)
        return [flow.done for flow in self.flows]

    def expect(self, link, now):
        """The port looks for something to send as soon as it is free."""
        port = self.ports[link]
        if not port.due and (port.queue or port.own):
            port.due = True
            heapq.heappush(self.events, (max(now, port.free_at), FREE, link, None))

    def start(self, number, now):
        first = self.flows[number].path[0]
        port = self.ports[first]
        if not port.own:
            port.last_own = False
        port.own.append(number)
        self.expect(first, now)

    def arrive(self, link, packet, now):
        number, hop, size = packet
        flow = self.flows[number]
        if hop + 1 == len(flow.path):
            flow.delivered += size
            flow.acks.append((now + flow.back, size))
            heapq.heappush(self.events, (now + flow.back, TRY, flow.path[0], None))
            if flow.delivered == flow.size:
                flow.done = now
                for each in flow.followers:
                    follower = self.flows[each]
                    follower.waits -= 1
                    follower.earliest = max(follower.earliest, now + follower.lag)
                    if not follower.waits:
                        heapq.heappush(self.events, (follower.earliest, START, each, None))
            return
        out = flow.path[hop + 1]
        port = self.ports[out]
        idle = port.free_at <= now and not port.paused and not port.due
        if idle and not port.queue and not port.own:
            self.transmit(out, (number, hop + 1, size), now)
            return
        wire = size + self.settings.header_bytes
        port.queue.append(((number, hop + 1, size), link))
        before = self.ports[link]
        before.ingress += wire
        if not before.asked and before.ingress > self.settings.pause_bytes:
            before.asked = True
            before.pauses += 1
            heapq.heappush(self.events, (now + before.delay, FLIP, link, None))
        if not port.paused:
            self.expect(out, now)

    def transmit(self, link, packet, now):
        port = self.ports[link]
        wire = packet[2] + self.settings.header_bytes
        port.free_at = now + int(wire * (PS / port.rate) + 0.5)
        port.bytes_sent += wire
        heapq.heappush(self.events, (port.free_at + port.delay, ARRIVE, link, packet))

    def send(self, link, now):
        port = self.ports[link]
        if port.paused:
            return
        sent = False
        if port.own and (not port.queue or not port.last_own):
            sent = port.last_own = self.send_own(link, now)
        if not sent and port.queue:
            packet, came_by = port.queue.popleft()
            before = self.ports[came_by]
            before.ingress -= packet[2] + self.settings.header_bytes
            if before.asked and before.ingress <= self.settings.resume_bytes:
                before.asked = False
                heapq.heappush(self.events, (now + before.delay, FLIP, came_by, None))
            self.transmit(link, packet, now)
            sent, port.last_own = True, False
        if sent:
            self.expect(link, now)

    def send_own(self, link, now):
        port = self.ports[link]
        for turn, number in enumerate(port.own):
            flow = self.flows[number]
            size = min(self.settings.packet_bytes, flow.size - flow.sent)
            acked = sum(each for time, each in flow.acks if time <= now)
            opened = flow.sent - acked
            if opened and opened + size > flow.window:
                continue
            flow.sent += size
            port.own = port.own[turn + 1 :] + port.own[: turn + 1]
            if flow.sent == flow.size:
                port.own.remove(number)
            self.transmit(link, (number, 0, size), now)
            return True
        return False
