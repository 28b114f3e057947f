"""``trainscout simulate`` in a clone."""

import sys

from trainscout.commands.simulate import main

if __name__ == "__main__":
    sys.exit(main())
