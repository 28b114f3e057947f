"""``trainscout optimize`` in a clone."""

import sys

from trainscout.cli import main

if __name__ == "__main__":
    sys.exit(main(["optimize", *sys.argv[1:]]))
