if __name__ == "swarm":
    raise ImportError("import this package as swarmkv.swarm, not as swarm")
