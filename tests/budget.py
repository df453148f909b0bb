"""What the product may weigh: ``make lint`` runs it, and it prints the figures.

``python -m tests.budget``. A feature that needs more raises its number here, with a line in
CHANGELOG that says what users get for it.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINES = {  # of code with comments and blank lines, by folder; florilege: what all folders share
    "training": 7_800,
    "server": 5_600,
    "calibration": 8_300,
    "models": 4_200,
    "data": 3_300,
    "florilege": 2_000,
}
PUBLIC_NAMES = 760
LONGEST_FILE = 350
FILES_IN_A_FOLDER = 18
COMPLEXITY = 15
COMPLEX_ABOVE = 10
COMPLEX_FUNCTIONS = 20
TEST_LINES_FOR_EACH = 1.2
SHARED_FILE_NAMES = {"__init__", "__main__", "cli", "settings"}
PARTICIPLES = set(
    "asked brought chosen done drawn found given gone held judged kept known left made meant met "  # noqa: SIM905
    "read_ said seen sent shown taken told wanted wished written".split()
)
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.Assert)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def product() -> dict[Path, str]:
    """Every Python file of the product by its path; links are not followed."""
    files = [path for folder in LINES for path in sorted((ROOT / folder).glob("**/*.py"))]
    own = [path for path in files if not any(p.is_symlink() for p in path.parents)]
    return {path.relative_to(ROOT): path.read_text("utf-8") for path in own}


def complexity(function: ast.AST) -> int:
    """McCabe's number: one, and one more for each way to branch."""
    count = 1
    for node in ast.walk(function):
        if isinstance(node, BRANCHES):
            count += 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.match_case):
            count += 1
    return count


def assigned_names(tree: ast.AST) -> Iterator[str]:
    """Every name that an assignment or a loop binds."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr, ast.For)):
            targets = [node.target]
        for target in targets:
            yield from (leaf.id for leaf in ast.walk(target) if isinstance(leaf, ast.Name))


def faults() -> Iterator[str]:
    """What is over the budget, a sentence each; prints the figures on the way."""
    texts = product()
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = {path: text.count("\n") for path, text in texts.items()}
    by_folder = Counter[str]()
    for path, count in lines.items():
        by_folder[path.parts[0]] += count
    total = sum(lines.values())
    tests = sum(path.read_text("utf-8").count("\n") for path in (ROOT / "tests").rglob("*.py"))
    names = [
        node.name
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_")
    ]
    functions = sorted(
        (
            (complexity(node), f"{path}:{node.lineno} {node.name}")
            for path, tree in trees.items()
            for node in ast.walk(tree)
            if isinstance(node, FUNCTIONS)
        ),
        reverse=True,
    )
    complex_functions = [each for each in functions if each[0] > COMPLEX_ABOVE]
    bound = [name for tree in trees.values() for name in assigned_names(tree)]
    participles = Counter(name for name in bound if name in PARTICIPLES)
    stems = Counter(path.stem for path in texts)
    twins = sorted(s for s, count in stems.items() if count > 1 and s not in SHARED_FILE_NAMES)
    folders = Counter(path.parent for path in texts if path.stem != "__init__")
    print(
        f"budget: {total:,} lines in {len(texts)} files ({dict(by_folder)}), tests {tests:,}; "
        f"{len(names)} public names; {len(complex_functions)} functions above {COMPLEX_ABOVE}; "
        f"{1000 * participles.total() / len(bound):.1f} participles of 1,000 variables"
    )
    for folder, most in LINES.items():
        if by_folder[folder] > most:
            yield f"{folder} has {by_folder[folder]:,} lines of {most:,}: merge or remove something"
    if len(names) > PUBLIC_NAMES:
        yield f"{len(names)} public names of {PUBLIC_NAMES}: make private what one module uses"
    if tests > TEST_LINES_FOR_EACH * total:
        yield f"tests have {tests:,} lines for {total:,}: parametrise tests of one thing"
    for path, count in lines.items():
        if count > LONGEST_FILE:
            yield f"{path} has {count} lines of {LONGEST_FILE}: split it by idea"
    for score, place in functions:
        if score > COMPLEXITY:
            yield f"{place} has a complexity of {score}, allowed are {COMPLEXITY}: split it"
    if len(complex_functions) > COMPLEX_FUNCTIONS:
        yield (
            f"{len(complex_functions)} functions have a complexity above {COMPLEX_ABOVE}, allowed "
            f"are {COMPLEX_FUNCTIONS}: split {complex_functions[-1][1]} or another one"
        )
    for folder_path, count in folders.items():
        if count > FILES_IN_A_FOLDER:
            yield f"{folder_path} has {count} files of {FILES_IN_A_FOLDER}: make a folder of some"
    if twins:
        yield f"files share a name: {', '.join(twins)}; name each after its own idea"
    if participles:
        listed = ", ".join(name for name, _ in participles.most_common(5))
        yield f"variables are named by a bare participle ({listed}): say what they hold"


def main() -> None:
    """Print the figures; exit with 1 and what to do where something is over the budget."""
    messages = list(faults())
    for message in messages:
        print(f"budget: {message}", file=sys.stderr)
    sys.exit(bool(messages))


if __name__ == "__main__":
    main()
