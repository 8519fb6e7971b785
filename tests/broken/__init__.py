"""Models that are broken on purpose, each by one line: what the checks have to catch."""
