"""One training job predicted: all that this needs, and no more."""

from .io.cache_folder import keep_compiled

keep_compiled()
