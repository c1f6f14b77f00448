"""A guide through any Git repository: `--prop knowledge.repo=…` says which."""

from loopline import Bundle

from .workflow import RepoGuide

bundle = Bundle(
    id="repo_guide",
    workflow=RepoGuide,
    configuration={"knowledge": {"repo": "", "ref": "HEAD"}},
)
