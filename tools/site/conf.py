"""The documentation site: `sphinx-build -W -c tools/site . build/site` writes it from a checkout.

Its pages are the Markdown files of the repository, and one with the public names of `reference`.
"""

from __future__ import annotations

from importlib.metadata import version as version_of
from typing import Any, Final

import reference

project = "kvtwin"
author = "the kvtwin authors"
project_copyright = "the kvtwin authors, Apache-2.0"
version = release = version_of("kvtwin")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]

root_doc = "tools/site/index"
include_patterns = [
    "*.md",
    "docs/**",
    "*/README.md",
    "tools/*/README.md",
    "tools/commands/*/README.md",
    "tools/results/*.md",
    "tools/site/**",
]
exclude_patterns = ["build", ".*"]
html_theme = "furo"
html_title = f"kvtwin {version}"
html_copy_source = False
html_theme_options: Final = {"navigation_with_keys": True}

# Docstrings have `code` in single backticks, and types in their text.
default_role = "code"
autosummary_generate = False  # its table links to the page itself
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
napoleon_use_rtype = False
napoleon_use_ivar = True

myst_heading_anchors = 4
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Pages of results are reached by links. Links to source files are for GitHub.
suppress_warnings = ["toc.not_included", "myst.xref_ambiguous"]


def list_names(_app: object, page: str, source: list[str]) -> None:
    """Replace NAMES on the page of functions by the public names of `reference`."""
    if page == "tools/site/functions":
        source[0] = source[0].replace("NAMES", "\n   ".join(reference.__all__))


def setup(app: Any) -> None:
    """Let Sphinx list the names."""
    app.connect("source-read", list_names)
