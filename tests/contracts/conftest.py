import sys
from pathlib import Path

# So that the suites are found by those who run them against an implementation.
sys.path.append(str(Path(__file__).parent))
