"""Pages that any browser shows without a network: text, equations and figures in one file."""
