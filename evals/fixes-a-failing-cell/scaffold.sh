#!/bin/sh
# Its first cell failed: the column has a different name.
set -eu
sh "${0%/*}/../prepare.sh" "Total :: total == 60"
.stepper/env/bin/python -I - <<'END'
import json
path = "notebooks/sales.ipynb"
with open(path) as file:
    notebook = json.load(file)
source = "import csv\nwith open('../sales.csv') as file:\n    total = sum(int(row['amuont']) for row in csv.DictReader(file))\ntotal"
cell = {"cell_type": "code", "id": "total", "metadata": {}, "source": source, "execution_count": None, "outputs": []}
notebook["cells"].append(cell)
with open(path, "w") as file:
    json.dump(notebook, file, indent=1)
END
.stepper/env/bin/stepper run notebooks/sales.ipynb >/dev/null || :
