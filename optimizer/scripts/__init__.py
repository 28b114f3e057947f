"""Search over the settings of a user's own script: what they are, and which launches there are."""
