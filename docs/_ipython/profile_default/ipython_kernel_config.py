"""How the pages' programs draw: pictures of matplotlib as SVG, sharp on every screen."""

c = get_config()  # noqa: F821 (IPython's)
c.InlineBackend.figure_formats = {"svg"}
c.InlineBackend.rc = {"figure.dpi": 96, "svg.fonttype": "path"}
