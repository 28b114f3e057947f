"""``python -m trainscout``."""

from trainscout.cli import run

if __name__ == "__main__":
    run()
