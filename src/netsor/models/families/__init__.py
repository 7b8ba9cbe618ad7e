"""What real code draws, one family a file: from a configuration to the description of a transformer."""
