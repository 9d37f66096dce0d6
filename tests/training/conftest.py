import sys
from pathlib import Path

# The toys are imported here and by the worker processes that some tests start.
sys.path.insert(0, str(Path(__file__).parent))
