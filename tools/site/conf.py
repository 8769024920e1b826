"""The Sphinx configuration of the site."""

from importlib.metadata import version as version_of
from typing import Final

project = "kvtwin"
author = "the kvtwin authors"
project_copyright = "the kvtwin authors, Apache-2.0"
version = release = version_of("kvtwin")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

root_doc = "index"
html_theme = "furo"
html_title = f"kvtwin {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options: Final = {"navigation_with_keys": True}

# Docstrings have `code` in single backticks, and types in their text.
default_role = "code"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
napoleon_use_rtype = False
napoleon_use_ivar = True

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_links_external_new_tab = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

nitpicky = False  # the types in signatures are NumPy's and torch's, which are not looked up
suppress_warnings = ["myst.xref_ambiguous"]
