"""The Python API: ``import trainscout as ts`` offers what these modules define."""
