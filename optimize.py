"""``trainscout optimize`` in a clone."""

import sys

from trainscout.commands.optimize import main

if __name__ == "__main__":
    sys.exit(main())
