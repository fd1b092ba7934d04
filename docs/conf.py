"""Settings of Sphinx:
``python -m sphinx -W --keep-going -b html docs docs/_build/html`` from the root of the
project.

Nothing is fetched, neither by the build nor by the pages: examples use bundled data,
formulas become drawings.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_DOCS = Path(__file__).parent
sys.path[:0] = [str(_DOCS / "_ext"), str(_DOCS.parent)]
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import flwr_flynn  # noqa: E402

# -------- project

project = "flwr-flynn"
author = "The flwr-flynn authors"
copyright = author
version = release = flwr_flynn.__version__

# -------- sources

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
    "sphinx_copybutton",
    "sphinx_design",
    "flynn_reference",
    "svg_formulas",
]
exclude_patterns = [
    "_build",
    "_templates",
    "examples/GALLERY_HEADER.rst",
    "gallery/**/*.ipynb",
]
templates_path = ["_templates"]
# docstrings put `names` between single backticks, see flynn_reference
default_role = "maybe"
nitpicky = True
# Base classes that have no page here.
nitpick_ignore_regex = [
    ("py:class", r"(abc|flwr|sklearn)\..*|flwr_flynn\.flower\.strategy\.BaseStrategy")
]

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# -------- reference

autosummary_generate = True
autodoc_typehints = "none"  # the sections of the docstrings have the types
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
numpydoc_validation_checks = {
    "GL03",
    "GL07",
    "PR02",
    "PR03",
    "PR05",
    "PR10",
    "SS01",
    "SS02",
    "SS03",
}

# -------- gallery

sphinx_gallery_conf = {
    "examples_dirs": ["examples"],
    "gallery_dirs": ["gallery"],
    "backreferences_dir": "gallery/backreferences",
    "doc_module": ("flwr_flynn",),
    "image_scrapers": ("matplotlib",),
    "abort_on_example_error": True,
    "parallel": 2,
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    # no times on the pages: they would change with every build
    "min_reported_time": 3600,
    "reset_modules": ("matplotlib",),
    "remove_config_comments": True,
}

# -------- pages

html_theme = "pydata_sphinx_theme"
html_title = "flwr-flynn"
html_static_path = ["_static"]
html_css_files = ["flynn.css"]
html_show_sourcelink = False
html_copy_source = False
html_sidebars: dict[str, list[str]] = {
    "index": [],
    "changelog": [],
    "security": [],
    "contributing": [],
}
html_math_renderer = "svg"
html_theme_options = {
    "logo": {"text": "flwr-flynn"},
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_prev_next": True,
    "show_toc_level": 2,
    # Results have none: their tables are wide.
    "secondary_sidebar_items": {
        f"{folder}/**": ["page-toc"]
        for folder in ("tutorial", "how_to", "explanation", "reference")
    },
    "footer_start": ["copyright"],
    "footer_end": [],
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
