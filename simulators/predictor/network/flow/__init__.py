"""Flow level: rates instead of packets. Importing this loads numba."""
