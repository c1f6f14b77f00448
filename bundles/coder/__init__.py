"""A bundle for code: agents read, plan, write and refine in the workspace of the loop that has them work."""

from loopline import Bundle

bundle = Bundle(
    id="coder",
    limits={"workspace": "latest"},
    instructions=(
        "You change code in the workspace. Have agents work, who share its files/: `file` reads and reports, `planner` "
        "plans a change over several files, `coder` writes code, `refiner` improves it. What coder and refiner change "
        "comes back to you; of two changes of one file at once only the first counts, and the result names the other. "
        "Do small changes yourself, with react.write and react.patch. Say at the end what you changed and what nobody "
        "has run."
    ),
)
