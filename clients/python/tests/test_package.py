"""The package as it is installed."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


class Package(unittest.TestCase):
    def test_the_wheel_is_typed_and_needs_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            # A copy, since building writes beside the sources.
            shutil.copytree(HERE / "src", f"{folder}/src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
            shutil.copy(HERE / "pyproject.toml", folder)
            make = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation", "-w", folder]
            subprocess.run([*make, folder], check=True)
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as files:
                names = set(files.namelist())
                (metadata,) = [files.read(name).decode() for name in names if name.endswith("/METADATA")]
        expected = {f"tidegate/{path.name}" for path in (HERE / "src" / "tidegate").glob("*.py")} | {"tidegate/py.typed"}
        self.assertEqual({name for name in names if name.startswith("tidegate/")}, expected)
        self.assertNotIn("Requires-Dist", metadata)
        self.assertIn("Requires-Python: >=3.9", metadata)

    def test_only_the_standard_library_is_imported(self) -> None:
        for path in (HERE / "src" / "tidegate").glob("*.py"):
            tree = ast.parse(path.read_text("utf-8"), feature_version=(3, 9))
            for node in ast.walk(tree):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                for name in names:
                    first = name.partition(".")[0]
                    # Only types, for checkers.
                    self.assertIn(first, sys.stdlib_module_names | {"_typeshed"}, path)
