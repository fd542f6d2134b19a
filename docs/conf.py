"""How Sphinx builds these pages: python -m sphinx docs OUT (python -m pip install ".[docs]" installs it)."""

import sys
from pathlib import Path

import dasrel

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "dasrel"
author = "the dasrel developers"
copyright = f"2026, {author}"  # noqa: A001 - Sphinx's name
version = release = dasrel.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax", "dasrel_pages"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

default_role = "literal"
suppress_warnings = ["ref.python"]  # names of fields that several classes have
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_google_docstring = False
napoleon_use_rtype = False
highlight_language = "text"

html_theme = "pydata_sphinx_theme"
html_title = f"dasrel {version}"
html_static_path = ["_static"]
html_show_sourcelink = False
html_theme_options = {
    "show_prev_next": False,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
}
