"""Which files hold tools, and the alias under which the model sees them: `analyst.euros`."""

TOOLS_SPECS = [{"ref": "tools.py", "alias": "analyst"}]
