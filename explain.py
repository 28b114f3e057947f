"""``trainscout explain`` in a clone."""

import sys

from trainscout.commands.explain import main

if __name__ == "__main__":
    sys.exit(main())
