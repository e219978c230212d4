"""`caffelite playground`: small nets that learn while one looks, and changes them.

`setting.py` says what can be chosen, `data.py` makes the points, `program.py` writes the program that does the same.
`engine.py` trains: it calls `Model.fit` with a callback that plays, pauses and takes steps. `page.py` is the room of
the page.
"""
