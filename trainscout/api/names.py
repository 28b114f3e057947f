"""What ships, by name: mappings whose values are loaded when they are first looked up."""

from __future__ import annotations

from trainscout.conf.catalogue import load_catalogue

models = load_catalogue().models
gpus = load_catalogue().gpus
clusters = load_catalogue().clusters
frameworks = load_catalogue().frameworks
spaces = load_catalogue().spaces
