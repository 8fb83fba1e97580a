"""The distribution `rpr`: the package `rpr`, its command and T2T's launchers.

tensor2tensor is not among the requirements, because pip cannot resolve what its wheel asks for
(tensorflow-probability 0.7.0 does not import on TensorFlow 2.15; gym, kfac, dopamine-rl, ... are
never imported by translation). requirements-cpu.lock and requirements-gpu.lock hold it, with
hashes; in an environment of your own install it without its dependencies, then this distribution,
last, so that its t2t-* launchers stand in place of those of the wheel:

    pip install --no-deps tensor2tensor==1.15.7 && pip install '.[cpu]'
"""
import glob
import os
import shutil

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

VERBS = {"datagen": "t2t-datagen", "train": "t2t-trainer", "decode": "t2t-decoder",
         "evaluate": "t2t-eval", "average": "t2t-avg-all", "bleu": "t2t-bleu"}
# Programs of T2T's wheel that cannot run here; each says what to use instead.
REPLACED = ["t2t-attack", "t2t-exporter", "t2t-insights-server", "t2t-make-tf-configs",
            "t2t-query-server", "t2t-translate-all"]


class BuildWithRecipes(build_py):
    """Puts gin/*.gin into a wheel, as rpr/recipes, and into a source distribution; an editable
    install reads gin/ itself."""

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), *glob.glob("gin/*.gin")]

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            folder = os.path.join(self.build_lib, "rpr", "recipes")
            os.makedirs(folder, exist_ok=True)
            for path in glob.glob("gin/*.gin"):
                shutil.copy(path, folder)


setup(
    name="rpr",
    cmdclass={"build_py": BuildWithRecipes},
    version="0.1.0",
    description="A relative-position Transformer experimentation framework on tensor2tensor",
    license="Apache-2.0",
    python_requires=">=3.11.4,<3.12",  # tarfile's filters; TensorFlow 2.15 has no later wheel
    packages=find_packages(include=["rpr", "rpr.*"]),
    package_data={"rpr": ["py.typed"], "rpr.report": ["*.jinja", "page.js"],
                  "rpr.problems": ["*/*.gz", "*/NOTICE*", "*/LICENSE*"]},
    install_requires=[
        "numpy>=1.26.4,<2",         # TensorFlow 2.15 and T2T are written for NumPy 1
        "tf-slim==1.1.0",           # T2T's input readers and optimize_loss
        "six>=1.16",                # T2T
        "scipy>=1.11,<1.16",        # T2T's audio problems, which its Transformer imports
        "requests>=2.28",           # T2T, and the downloads of the problems
        "sacrebleu>=2.6,<3",        # test sets, BLEU, chrF, TER, significance
        "gin-config>=0.5",          # experiment files
        "setuptools<82",            # tensorboard 2.15: pkg_resources, which setuptools 82 removed
        "rich>=13",                 # progress and tables
        "matplotlib>=3.8",          # the report's plots
        "jinja2>=3.1",              # the report's page: every value in it is escaped
    ],
    extras_require={
        # The last TensorFlow with Estimator, which T2T trains and decodes through.
        "cpu": ["tensorflow-cpu==2.15.1"],
        "gpu": ["tensorflow[and-cuda]==2.15.1"],
        "words": ["spacy>=3.7,<4"],                   # tokenizers of problems/europarl.py
        "moses": ["sacremoses>=0.1.1"],               # rpr/utils/moses.py: scores, a problem
        "slurm": ["submitit>=1.5"],                   # rpr study --cluster=slurm
        "pandas": ["pandas>=2"],                      # rpr.results
        # rpr export; ctranslate2 4.8 has the layers that an empty first one needs.
        "export": ["ctranslate2>=4.8,<5", "safetensors>=0.5"],
        "completion": ["argcomplete>=3"],             # eval "$(register-python-argcomplete rpr)"
        # rpr track
        "wandb": ["wandb>=0.17"],
        "mlflow": ["mlflow-skinny>=2.10"],
        "aim": ["aim>=3.20"],
        "test": ["pytest>=8", "pytest-xdist>=3.5", "pytest-timeout>=2.3", "hypothesis>=6.100",
                 "ruff>=0.9", "mypy>=1.13"],
    },
    entry_points={"console_scripts": [
        "rpr = rpr.cli:main",
        *(f"{script} = rpr.cli:{verb}" for verb, script in VERBS.items()),
        *(f"{script} = rpr.cli:replaced" for script in REPLACED),
    ]},
)
