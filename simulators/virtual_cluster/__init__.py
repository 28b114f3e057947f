"""Unmodified scripts on virtual GPUs: traced, collated, executed, and run live.

    script --emulation--> events of a rank --traces--> collated job --execution--> step
                                 \\--live--> the script's own clock

- ``traces``: what a rank did, as events; files, Perfetto and Chakra; which ranks do the same and
  communicate with whom (``collate``); operations as the kernels that are priced (``lowering``);
  what waits for what (``rank_walk``): the one place that knows what streams, events, waits and
  communicators mean for time.
- ``walk``: what walked events take, and the rendezvous of ranks: all that ``execution`` and
  ``live`` share.
- ``allocator``: PyTorch's caching allocator, for scripts that run and for traces.
- ``emulation``: one rank of an unmodified script. Virtual GPUs below torch, which emit the events.
- ``execution``: the walks of traced ranks, played by the engine: step time, breakdown, memory.
- ``live``: the walks of ranks that run, played while they run; scripts read the simulated clock.
- ``traced``: layers and ranks of recipes as Megatron-Core itself runs them under ``emulation``.

A room imports only those above it.
"""
