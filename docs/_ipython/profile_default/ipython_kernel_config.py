"""How the pages' programs show things: pictures as SVG, sharp on every screen, in caffelite's style; short errors."""

from caffelite._support.colours import STYLE

c = get_config()  # noqa: F821 (IPython's)
c.IPKernelApp.matplotlib = "inline"
c.IPKernelApp.log_level = "ERROR"  # it warns that others on this machine might listen to it
c.InlineBackend.figure_formats = {"svg"}
c.InteractiveShell.xmode = "Minimal"
c.InlineBackend.rc = STYLE | {
    "figure.dpi": 96,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "path",
    "svg.hashsalt": "caffelite",
}
