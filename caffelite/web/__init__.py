"""Pages that show a training: `cl.live()`. They need the extra `web`: pip install 'caffelite[web]'.

`server.py` has the server, which nobody but this machine's user reaches. `live.py` has the callback, and `watch.py`
what it reads from a training. The pages are in `static/`: plain HTML, CSS and JavaScript.
"""
