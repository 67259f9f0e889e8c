"""The documentation site: `python -m docs.builder` runs the code on its pages and builds it."""
