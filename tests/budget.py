"""What the product may weigh, and how its parts are named: `make lint` runs this.

``python -m tests.budget`` prints the figures and what is over its limit. Lines are lines of code:
blank lines, comments and docstrings are free, so that nobody saves on an explanation. A limit falls
with the code: lower it in the commit that removes lines.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


# Today's figures and 3 %; each release lowers them to what is then there. Nobody shortens a test or
# a comment to fit.
LINES = {  # of code, by folder of the package; florilege: what all folders share
    "training": 5_020,
    "server": 6_750,
    "calibration": 8_450,
    "models": 4_640,
    "data": 2_655,
    "plugins": 3_130,
    "florilege": 3_415,
}
PUBLIC_NAMES = 865
JAVASCRIPT_LINES = 5_000  # of the page, with and without a server
WRITTEN_WORDS = 40_000  # of the documentation, without what commands generate
GENERATED_PAGE = "docs/commands.md"
GENERATED_BLOCK = re.compile(  # tables between two comments, and code
    r"^<!-- (\w+) -->$.*?^<!-- /\1 -->$|^```python$.*?^```$", re.DOTALL | re.MULTILINE
)
LONGEST_FILE = 300
FILES_IN_A_FOLDER = 20
COMPLEXITY = 15
COMPLEX_ABOVE = 10
COMPLEX_FUNCTIONS = 3
NO_PRODUCT = {"benchmarks", "clients", "florilege_client"}  # folders of tests of other code
SHARED_FILE_NAMES = {"__init__", "__main__", "cli", "settings"}
PARTICIPLES = set(
    "asked brought chosen done drawn found given gone held judged kept known made meant met "  # noqa: SIM905
    "read_ said seen sent shown taken told wanted wished written".split()
)
NOUNS_IN_ING = {"batching", "decoding", "scheduling", "staging", "testing", "tracing", "training"}
NO_NOUN = re.compile(r"(?:.*_)?(?:\w+ing|\w+ly|\w+wise|\w+wards|alike|across)")
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.Assert)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def product() -> dict[Path, str]:
    """Every Python file of the product by its path."""
    files = sorted((ROOT / "florilege").rglob("*.py"))
    return {path.relative_to(ROOT): path.read_text("utf-8") for path in files}


def folder_of(path: Path) -> str:
    """The entry of ``LINES`` that a file counts for."""
    folder = path.parts[1]
    return folder if folder in LINES else "florilege"


def lines_of_code(text: str) -> int:
    """How many lines are neither blank nor part of a comment or a docstring."""
    rows = text.splitlines()
    free = {i for i, row in enumerate(rows) if not row.strip() or row.strip().startswith("#")}
    kinds = (ast.Module, ast.ClassDef, *FUNCTIONS)
    for node in (node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)):
        if ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            free.update(range(docstring.lineno - 1, docstring.end_lineno or docstring.lineno))
    return len(rows) - len(free)


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


def variables(tree: ast.AST) -> Iterator[str]:
    """Every name that an assignment, a loop or a parameter binds."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.arg):
            yield node.arg
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr, ast.For)):
            targets = [node.target]
        for target in targets:
            yield from (leaf.id for leaf in ast.walk(target) if isinstance(leaf, ast.Name))


def imports(tree: ast.Module) -> int:
    """How many of our modules a file imports."""
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return sum((module or "").startswith("florilege.") for module in modules)


def written_words() -> dict[str, int]:
    """The words that people wrote, by page; a generated page or block, and code, is not counted."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    texts = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in sorted(pages)}
    texts.pop(GENERATED_PAGE)
    return {page: len(GENERATED_BLOCK.sub("", text).split()) for page, text in texts.items()}


def faults() -> Iterator[str]:
    """What is over the budget, a sentence each; prints the figures on the way."""
    texts = product()
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = {path: lines_of_code(text) for path, text in texts.items()}
    by_folder = Counter[str]()
    for path, count in lines.items():
        by_folder[folder_of(path)] += count
    total = sum(by_folder.values())
    tests = sum(
        path.read_text("utf-8").count("\n")
        for path in (ROOT / "tests").rglob("*.py")
        if path.relative_to(ROOT / "tests").parts[0] not in NO_PRODUCT
    )
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
    bound = [(name, path) for path, tree in trees.items() for name in variables(tree)]
    participles = [(name, path) for name, path in bound if name in PARTICIPLES]
    stems = Counter(path.stem for path in texts)
    twins = sorted(s for s, count in stems.items() if count > 1 and s not in SHARED_FILE_NAMES)
    folders = Counter(path.parent for path in texts if path.stem != "__init__")
    words = written_words()
    print(
        f"budget: {total:,} lines of code in {len(texts)} files ({dict(by_folder)})\n"
        f"  tests {tests:,} lines\n"
        f"  public names {len(names)}\n"
        f"  functions with a complexity above {COMPLEX_ABOVE}: {len(complex_functions)}\n"
        f"  imports a file {sum(map(imports, trees.values())) / len(trees):.1f}\n"
        f"  file names that exist twice {len(twins)}\n"
        f"  participles of 1,000 variables {1000 * len(participles) / len(bound):.1f}\n"
        f"  written words of documentation {sum(words.values()):,}"
    )
    for folder, most in LINES.items():
        if by_folder[folder] > most:
            yield (
                f"{folder} has {by_folder[folder]:,} lines of code of {most:,}: "
                "merge or remove something"
            )
    if len(names) > PUBLIC_NAMES:
        yield (f"{len(names)} public names of {PUBLIC_NAMES}: make private what one module uses")
    scripts = (ROOT / "florilege" / "server" / "web").rglob("*.js")
    script_lines = sum(len(path.read_text("utf-8").splitlines()) for path in scripts)
    if script_lines > JAVASCRIPT_LINES:
        yield f"the page has {script_lines:,} lines of JavaScript of {JAVASCRIPT_LINES:,}"
    if sum(words.values()) > WRITTEN_WORDS:
        longest = max(words, key=lambda page: words[page])
        yield (
            f"the documentation has {sum(words.values()):,} written words of {WRITTEN_WORDS:,}: "
            f"shorten {longest} ({words[longest]:,}) or another page"
        )
    for path, count in lines.items():
        if count > LONGEST_FILE:
            yield f"{path} has {count} lines of code of {LONGEST_FILE}: split it by idea"
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
    for stem in sorted(set(stems) - NOUNS_IN_ING):
        if NO_NOUN.fullmatch(stem):
            yield f"a module is called {stem}: name it by a noun"
    for name, path in participles:
        yield f"{path} has a variable {name}: say what it holds"


def main() -> None:
    """Print the figures; exit with 1 and what to do where something is over the budget."""
    messages = list(faults())
    for message in messages:
        print(f"budget: {message}", file=sys.stderr)
    sys.exit(bool(messages))


if __name__ == "__main__":
    main()
