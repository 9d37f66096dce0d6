import sys
from pathlib import Path

# Under --import-mode=importlib a test folder is not on the path; `records` is the builders' module beside this file.
sys.path.insert(0, str(Path(__file__).parent))
