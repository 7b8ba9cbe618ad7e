"""Processes, threads, memory, files and signals. Knows nothing about networks."""
