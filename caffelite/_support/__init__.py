"""Helpers that every room may use: text tables, terminal, warnings, hints, interrupts, tracebacks."""
