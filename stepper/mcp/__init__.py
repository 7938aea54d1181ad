"""The MCP server: tools, resources and prompts for agents without hooks.

Like the command line, the server sends commands to the daemon through
`hook/daemon_client`. Apart from this module, the package imports only `common`,
`policy`, `messages` and the official SDK, which the extra `notebook-stepper[mcp]`
installs.
"""
