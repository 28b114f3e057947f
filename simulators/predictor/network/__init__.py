"""Networks that congest: a topology with routes, and engines that play flows over it."""
