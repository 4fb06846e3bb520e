import sys
from pathlib import Path

# So that both this process and the children find store_child.
sys.path.append(str(Path(__file__).parent))
