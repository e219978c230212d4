"""Tables of numbers and words: read from files, made into what a net takes, learned from, and reported on.

What the commands `caffelite train`, `predict` and `export` are made of.
"""
