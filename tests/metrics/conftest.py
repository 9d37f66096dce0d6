import sys
from pathlib import Path

# Test modules are imported by path, so the oracles that they share must be made importable.
sys.path.insert(0, str(Path(__file__).parent))
