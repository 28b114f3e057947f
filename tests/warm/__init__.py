"""Commands as processes of their own, without the two CPU seconds that starting Python and its
imports costs each: a server imports once and forks for every command.

A forked process has all that a started one has: arguments, folder, environment, pipes, signals,
exit code; and leaves nothing behind in the next, as running a command's ``main`` here would (the
folder, Hydra's state, MLflow's connections). What is special about how Python starts (its own
options and variables) is started for real, and so are the tests of starting itself.
"""
