"""How the pages' programs show things: pictures as SVG, sharp on every screen; errors without the stack."""

c = get_config()  # noqa: F821 (IPython's)
c.IPKernelApp.matplotlib = "inline"
c.IPKernelApp.log_level = "ERROR"  # it warns that others on this machine might listen to it
c.InlineBackend.figure_formats = {"svg"}
c.InteractiveShell.xmode = "Minimal"
c.InlineBackend.rc = {"figure.dpi": 96, "svg.fonttype": "path"}
