"""Pages that show a training: `cl.live()`. They need the extra `web` of pyproject.toml.

`server.py` has the server, which nobody but this machine's user reaches. `live.py` has the callback. For each training
it has a `Status` (numbers and curves), `Updates` (which part of the page is made when) and `Controls` (what pages ask
for). `snapshots.py` reads pictures from a training, and `runs.py` keeps runs. `folder.py` shows kept runs without a
training. The pages are in `static/`: plain HTML, CSS and JavaScript.
"""
