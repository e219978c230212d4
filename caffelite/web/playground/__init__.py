"""`caffelite playground`: small nets that learn while you watch and change them.

- `config.py` has the choices.
- `data.py` makes the points, `names.py` has names to learn, and `table.py` reads a table of the user's.
- `code.py` writes the program that does the same.
- `engine.py` trains. It calls `Model.fit` with a callback, the Player of `player.py`, which plays, pauses and takes
  steps.
- `requests.py` has the requests of the pages, which the Player waits for.
- `view.py` shows the outputs of a net and its units, and `names_view.py` the names that a net writes.
- `weight_trace.py` explains one weight: its gradient, by the chain rule and by a difference.
- `kernels.py` shows the next step, kernel by kernel, and `loops.py` the loop of a kernel.
- `page.py` is the page, for the server.

The site has the same page with an engine in JavaScript, in `docs/_playground/`. A test compares its losses with these.
"""
