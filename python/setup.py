"""What pyproject.toml cannot say: the wheel holds a library for one kind of machine, and no
code for one version of Python."""

import pathlib

import setuptools
from setuptools.command.bdist_wheel import bdist_wheel

BUNDLED = any((pathlib.Path(__file__).parent / "src/isthmus").glob("libisthmus.so.*"))


class Distribution(setuptools.Distribution):
    def has_ext_modules(self) -> bool:
        return BUNDLED


class Wheel(bdist_wheel):
    def get_tag(self) -> "tuple[str, str, str]":
        return ("py3", "none", super().get_tag()[2])


setuptools.setup(distclass=Distribution, cmdclass={"bdist_wheel": Wheel})
