import sys
from pathlib import Path

# The problems that the parity tests share are imported by name.
sys.path.insert(0, str(Path(__file__).parent))
