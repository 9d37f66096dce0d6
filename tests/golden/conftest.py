import sys
from pathlib import Path

# What is computed stands in modules beside the test, which accept.py imports too.
sys.path.insert(0, str(Path(__file__).parent))
