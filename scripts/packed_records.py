"""Pack the records of studies that are not on the leaderboard into results/NAME, or write them to a results folder.

python scripts/packed_records.py tuning --results FOLDER --pack     of a folder that has no other records
python scripts/packed_records.py attacks --results FOLDER --unpack  e.g. to verify them: python -m openbench verify
"""

import argparse
from pathlib import Path

from compare_adbench import RESULTS, pack, unpack

NAMES = ("tuning", "attacks", "corruptions", "cifar100")


def main() -> None:
    """Pack or unpack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=(*NAMES, "trainings"), help="folder below results")
    parser.add_argument("--results", type=Path, required=True, help="folder of the records")
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--pack", action="store_true", help="write results/NAME/records.parquet")
    way.add_argument("--unpack", action="store_true", help="write the committed records to the folder")
    arguments = parser.parse_args()
    (pack if arguments.pack else unpack)(arguments.results, packed=RESULTS / arguments.name, kinds=["records"])


if __name__ == "__main__":
    main()
