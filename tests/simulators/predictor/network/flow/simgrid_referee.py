"""Plays flows in SimGrid: a script for an interpreter that has it, which may not be this one.

Reads ``{"rates": [...], "flows": [[route, bytes, start_s], ...]}`` and prints the arrivals in
seconds. Every flow gets two hosts of its own with an explicit route, so nothing but the links is
shared; CM02 with TCP's window and cross traffic off is pure max-min sharing.
"""

from __future__ import annotations

import json
import sys

from simgrid import Actor, Engine, LinkInRoute, Mailbox, NetZone, this_actor

OPTIONS = [
    "--log=root.threshold:error",
    "--cfg=network/model:CM02",
    "--cfg=network/TCP-gamma:0",
    "--cfg=network/crosstraffic:0",
    "--cfg=surf/precision:1e-12",
    "--cfg=maxmin/precision:1e-12",
]


def main() -> None:
    question = json.load(sys.stdin)
    engine = Engine(["referee", *OPTIONS])
    zone = NetZone.create_full_zone("zone")
    links = [
        zone.create_link(f"link{number}", rate).set_latency(0.0).seal()
        for number, rate in enumerate(question["rates"])
    ]
    arrivals = [0.0] * len(question["flows"])

    def send(number: int, size_bytes: float, start_s: float) -> None:
        this_actor.sleep_until(start_s)
        Mailbox.by_name(str(number)).put("bytes", int(size_bytes))

    def receive(number: int) -> None:
        Mailbox.by_name(str(number)).get()
        arrivals[number] = Engine.clock

    pairs = []
    for number, (route, _, _) in enumerate(question["flows"]):
        source, destination = (zone.create_host(f"{side}{number}", 1e9) for side in "sd")
        way = [LinkInRoute(links[link]) for link in route]
        zone.add_route(source.netpoint, destination.netpoint, None, None, way, False)
        pairs.append((source, destination))
    zone.seal()
    for number, (_, size_bytes, start_s) in enumerate(question["flows"]):
        Actor.create(f"send{number}", pairs[number][0], send, number, size_bytes, start_s)
        Actor.create(f"receive{number}", pairs[number][1], receive, number)
    engine.run()
    json.dump(arrivals, sys.stdout)


if __name__ == "__main__":
    main()
