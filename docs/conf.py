"""How the site is built, by `make docs`. Pages are MyST notebooks, executed at the build: all output is true."""

import os
import sys
from pathlib import Path

import caffelite

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))
os.environ["IPYTHONDIR"] = str(HERE / "_ipython")  # how notebooks draw: see the profile there
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # several pages may be at work at once

project = "caffelite"
author = "The caffelite authors"
project_copyright = f"2026 {author}"
release = version = caffelite.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx_copybutton"]
extensions += [
    "docstrings",
    "reference",
    "sources",
    "drawing",
    "net",
    "exercise",
    "dark",
    "sizes",
    "ratios",
    "mathml",
    "gallery",
    "notebooks",
    "playground",
    "links",
    "assets",
]
exclude_patterns = ["_build", "_notebooks"]

# ---- pages ----
myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline", "dollarmath"]
myst_dmath_allow_labels = False
myst_update_mathjax = False
html_math_renderer = "mathml"
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 120  # seconds a block
nb_execution_show_tb = True  # with the warning, which ends the build, for a block that raises
nb_merge_streams = True
copybutton_exclude = ".linenos, .gp, .go"

# ---- reference ----
autosummary_generate = False
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 70
add_module_names = False
default_role = "py:obj"
toc_object_entries_show_parents = "hide"

# ---- HTML ----
html_theme = "furo"
html_title = "caffelite"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["caffelite.css"]
html_copy_source = False
html_show_sphinx = False
html_favicon = "_static/logo.svg"
html_theme_options = {
    "light_logo": "logo.svg",
    "dark_logo": "logo-dark.svg",
    "light_css_variables": {
        "color-brand-primary": "#0067a0",
        "color-brand-content": "#0067a0",
        "picture-blue": "#0072b2",
        "picture-orange": "#d55e00",
    },
    "dark_css_variables": {
        "color-brand-primary": "#66b8e8",
        "color-brand-content": "#66b8e8",
        "picture-blue": "#3d97dc",
        "picture-orange": "#fa803a",
    },
}
pygments_style = "default"
pygments_dark_style = "github-dark"
