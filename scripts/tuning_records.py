"""Pack the records of the studies `tuning/…` into results/tuning, or write them to a results folder.

python scripts/tuning_records.py --results FOLDER --pack     of a folder that has the records of these studies only
python scripts/tuning_records.py --results FOLDER --unpack   e.g. to verify them: python -m openbench verify
"""

import argparse
from pathlib import Path

from compare_adbench import RESULTS, pack, unpack

PACKED = RESULTS / "tuning"


def main() -> None:
    """Pack or unpack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="folder of the records")
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--pack", action="store_true", help="write results/tuning/records.parquet")
    way.add_argument("--unpack", action="store_true", help="write the committed records to the folder")
    arguments = parser.parse_args()
    (pack if arguments.pack else unpack)(arguments.results, packed=PACKED, kinds=["records"])


if __name__ == "__main__":
    main()
