"""MCP servers and clients through the official SDK, which is imported only when a server is started."""
