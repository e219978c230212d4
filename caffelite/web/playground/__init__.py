"""`caffelite playground`: small nets that learn while one looks, and changes them.

setting.py   what can be chosen
data.py      the points, and table.py a table of the user's own
code.py      the program that does the same
engine.py    trains: it calls `Model.fit` with a callback, the Player of player.py, which plays, pauses and takes steps
wishes.py    what the pages ask for, and the Player waits for
view.py      what a net and its units compute
follow.py    one weight: its gradient, by the chain rule and by a difference
kernels.py   the next step, kernel by kernel, and loops.py the loop of a kernel
page.py      the room of the page, for the server
"""
