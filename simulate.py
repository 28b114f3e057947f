"""``trainscout simulate`` in a clone."""

import sys

from trainscout.cli import main

if __name__ == "__main__":
    sys.exit(main(["simulate", *sys.argv[1:]]))
