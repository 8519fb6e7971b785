"""The Python blocks of README.md and of the pages in docs/ are tests."""

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

pytest_plugins = ["pytester"]  # runs test files that tests write

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()], patterns=["README.md", "docs/*.md"]
).pytest()
