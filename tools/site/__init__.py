"""The documentation site: `python -m tools.site` builds it with Sphinx, MyST and Furo.

The pages are the Markdown files of the repository, where they are. `function_pages` adds a page for
each public name, made of its docstring, its contract and the last benchmark; `pictures` draws the
pictures in `docs/pictures`; `build` puts all of it into one folder, with the layout of the
repository, so that links between pages are those that GitHub follows.
"""
