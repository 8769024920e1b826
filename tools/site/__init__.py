"""The documentation site: `python -m tools.site` builds it with Sphinx, MyST and Furo.

The pages are the Markdown files of the repository. `function_pages` adds a page for each public
name, made from its docstring, its contract and the last benchmark; `pictures` draws the pictures in
`docs/pictures`; `build` puts everything into one folder with the layout of the repository, so that
links between pages work as on GitHub.
"""
