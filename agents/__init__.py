if __name__ == "agents":
    raise ImportError("import this package as swarmkv.agents, not as agents")
