"""Which files hold tools, and the alias under which the model sees them: `hello.greet`."""

TOOLS_SPECS = [{"ref": "tools.py", "alias": "hello"}]
