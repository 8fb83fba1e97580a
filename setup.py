"""The distribution `rpr`."""
from setuptools import find_packages, setup

setup(
    name="rpr",
    version="0.1.0",
    packages=find_packages(include=["rpr", "rpr.*", "problems", "problems.*", "hparams"]),
)
