"""The MCP server: tools, resources and prompts for agents without hooks.

Like the command line, the server sends commands to the daemon through
`hook/daemon_client`. Otherwise it imports only `common`, `policy`, `messages` and the
official SDK, which the extra `notebook-stepper[mcp]` installs.
"""
