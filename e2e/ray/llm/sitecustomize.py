"""Puts a stand-in in the place of ray.serve.llm, which does not import without vLLM: processes of the rig find this
folder by PYTHONPATH. What they are sent names ray.serve.llm as on any cluster."""

import importlib.abc
import importlib.util
import pathlib
import sys


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "ray.serve.llm":
            return None
        return importlib.util.spec_from_file_location(name, pathlib.Path(__file__).with_name("standin.py"))


sys.meta_path.insert(0, Finder())
