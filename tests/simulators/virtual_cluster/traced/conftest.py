"""One process traces all layers: its imports take as long as forty of them, and tests' workers
leave no core free."""

from trainscout.simulators.virtual_cluster.traced import tracer

tracer.LAYERS_PER_PROCESS = 1000
