"""Write the part "Look up" without building the manual: `python -m generate FOLDER`, from docs/."""

import sys
from pathlib import Path

from generate.everything import write

write(Path(sys.argv[1]))
