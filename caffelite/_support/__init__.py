"""Helpers that every subpackage may use: text tables, terminal, warnings, hints, interrupts, tracebacks."""
