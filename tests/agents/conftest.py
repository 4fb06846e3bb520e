import sys
from pathlib import Path

# So that importable_agents is found by its name, as an application's modules are.
sys.path.append(str(Path(__file__).parent))
