"""``trainscout plan`` in a clone."""

import sys

from trainscout.commands.plan import main

if __name__ == "__main__":
    sys.exit(main())
