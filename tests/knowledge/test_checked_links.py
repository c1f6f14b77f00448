"""The links of a commit are checked again only where the commit can have changed what they lead to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loopline.knowledge.index_build import CheckedLinks, FileNote
from loopline.knowledge.links import document_labels, document_links
from loopline.knowledge.repository import RepositoryFile
from loopline.knowledge.tree import Root, Tree

NAMES = ("docs/a.md", "docs/b.md", "docs/in/c.md", "src/a.py", "ref")
TEXTS = (
    "plain",
    "[x](b.md) and ks:docs/in/c.md",
    "[x](../src/a.py) and [y](in/) and ks:src/gone.py",
    "(label)=\n# A\n[x](../../ref)",
    "{ref}`label` and [x](label) and [y](#other)",
    "(other)=\n# B\n[x](a.md)",
)


class CountedTree(Tree):
    """Counts the links that are looked up in it."""

    looked_up: int = 0

    def exists(self, path: str) -> bool:
        self.looked_up += 1
        return super().exists(path)

    def find(self, path: str) -> RepositoryFile | None:
        self.looked_up += 1
        return super().find(path)


def tree_of(files: dict[str, str], roots: tuple[Root, ...] = ()) -> CountedTree:
    return CountedTree(
        roots, [RepositoryFile(name, len(text), text) for name, text in sorted(files.items())]
    )


def check(checked: CheckedLinks, tree: Tree) -> list[str]:
    """Check the tree, whose blobs are the texts themselves."""
    notes = {
        path: FileNote(
            links=document_links(entry.path, entry.blob),
            labels=document_labels(entry.path, entry.blob),
        )
        for path, entry in tree.files.items()
    }
    return checked.check(tree, notes)


commits = st.lists(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TEXTS)), min_size=2, max_size=6
)
roots = st.sampled_from([(), (Root("docs", "docs"),), (Root("docs", "docs/in"), Root("src", ""))])


@given(commits, roots)
def test_commit_after_commit_the_broken_links_are_those_of_one_check(
    history: list[dict[str, str]], found_roots: tuple[Root, ...]
) -> None:
    checked = CheckedLinks()
    for files in history:
        tree = tree_of(files, found_roots)
        assert check(checked, tree) == check(CheckedLinks(), tree)


PAGES = {f"docs/{number}.md": f"[next]({number + 1}.md)\n" for number in range(100)}


def looked_up(changes: dict[str, str]) -> int:
    """The links that are looked up for a commit with these changes, after one of 100 pages with 99 good links."""
    checked = CheckedLinks()
    check(checked, tree_of(PAGES))
    tree = tree_of(PAGES | changes)
    check(checked, tree)
    return tree.looked_up


def test_a_commit_that_changes_a_page_looks_up_its_links_alone() -> None:
    once = looked_up({"docs/7.md": "[next](8.md)\n# Tea"})
    assert once == 1
    assert looked_up({}) == 0
    assert looked_up({"docs/7.md": "[gone](gone.md)"}) <= 10


def test_a_new_page_looks_up_its_own_links_and_those_that_were_broken() -> None:
    assert looked_up({"docs/100.md": "[first](0.md)"}) == 2


def test_a_path_that_does_not_exist_is_compared_with_few_others() -> None:
    files = {f"src/part{number}/module_{number}.py": "x" for number in range(3_000)}
    tree = tree_of({**files, "docs/green_tea.md": "tea", "docs/coffee.md": "coffee"})
    assert tree.nearest("docs/green_tee.md")[0] == "docs/green_tea.md"
    assert tree.nearest("src/part77/modul_77.py")[0] == "src/part77/module_77.py"
    assert tree.nearest("elsewhere/coffee.md") == ["docs/coffee.md"]
    assert tree.nearest("documents/kofee.md")[0] == "docs/coffee.md"
    assert tree.nearest("zzz") == []
