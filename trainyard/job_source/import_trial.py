"""Run the imports of a script without the rest of it: `python import_trial.py SCRIPT`, in the folder of the source.

Standard library only: the Python of the job's environment runs this file. Of the script, only the import statements at
its top level run, also those in `try`. Of the modules that it imports, all top-level code runs, as in the job. The last
line of stdout is a JSON object: an empty one, or `type`, `message`, `file`, `line` and `text` of the error.
"""

import ast
import json
import sys
import traceback
from pathlib import Path


def imports_of(tree: ast.Module) -> ast.Module:
    """Return a module with the top-level imports of another, with their line numbers."""
    kept = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) or _is_optional_import(node)]
    return ast.Module(body=kept, type_ignores=[])


def _is_optional_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Try) and any(isinstance(each, ast.Import | ast.ImportFrom) for each in node.body)


def run_imports(script: Path) -> dict[str, object]:
    """Run the imports of the script; the error, empty if there is none."""
    folder = Path.cwd()
    code = compile(imports_of(ast.parse(script.read_bytes(), str(script))), str(script), "exec")
    sys.argv, sys.path[0] = [str(script)], str(script.parent)
    try:
        exec(code, {"__name__": "__imports__", "__file__": str(script)})  # noqa: S102 (the job's own script)
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_in(folder, frame.filename)]
        place = frames[-1] if frames else None
        return {
            "type": type(error).__name__,
            "message": str(error),
            "file": str(Path(place.filename).absolute().relative_to(folder)) if place else str(script),
            "line": place.lineno if place else 1,
            "text": place.line if place else "",
        }
    return {}


def _is_in(folder: Path, file: str) -> bool:
    path = Path(file).absolute()
    return folder in path.parents and path.is_file()  # `<frozen os>` is none


if __name__ == "__main__":
    result = run_imports(Path(sys.argv[1]))
    sys.stdout.write(f"\n{json.dumps(result)}\n")
    sys.stdout.flush()
