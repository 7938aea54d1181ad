#!/bin/sh
# Set up the project of a case: stepper's environment as for the plugin, a small table, and the
# notebook `notebooks/sales.ipynb` with a plan.
#   prepare.sh [STEP…]      without a step, no notebook is created
set -eu
root=$(cd "${0%/*}/.." && pwd -P)
printf 'region,amount,amount_net\nnorth,10,8\nsouth,20,16\nnorth,30,24\n' >sales.csv
"$root/install.sh" . --plugin >/dev/null
[ $# -gt 0 ] || exit 0
for step; do
  shift
  set -- "$@" --step "$step"
done
.stepper/env/bin/stepper new "Sales by region" --name sales "$@" >/dev/null
mv notebooks/*sales.ipynb notebooks/sales.ipynb
.stepper/env/bin/stepper use notebooks/sales.ipynb >/dev/null
