if __name__ == "verify":
    raise ImportError("import this package as swarmkv.verify, not as verify")
