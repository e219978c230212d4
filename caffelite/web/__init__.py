"""Pages that show training: `cl.live()`. They need the extra `web` of pyproject.toml.

`server.py` has the server, which only this machine's user can reach. `live.py` has the callback. For each training run
it has a `Status` (numbers and curves), `Updates` (which part of the page is made when) and `Controls` (what pages ask
for). `snapshots.py` makes pictures of training, and `runs.py` keeps runs. `folder.py` shows kept runs without training.
The pages are in `static/`: plain HTML, CSS and JavaScript.
"""
